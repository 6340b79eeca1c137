"""The Modelfile's TEMPLATE against the model's own chat template, for the usual families."""

from __future__ import annotations

import pytest

from bc250studio.errors import BadInput
from bc250studio.export import ollama

TEMPLATES = {
    "chatml": "{% for m in messages %}{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + "
    "m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
    "mistral": "{{ bos_token }}{% for m in messages %}{% if m['role']=='user' %}{{ '[INST] '+m['content']+' [/INST]' }}"
    "{% elif m['role']=='assistant' %}{{ m['content']+eos_token }}{% endif %}{% endfor %}",
    "llama3": "{{- bos_token }}{%- if messages[0]['role']=='system' %}{%- set system=messages[0]['content']|trim %}"
    "{%- set messages=messages[1:] %}{%- else %}{%- set system='' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nDate: 26 Jul\n\n' + system + '<|eot_id|>' }}"
    "{%- for m in messages %}"
    "{{- '<|start_header_id|>'+m['role']+'<|end_header_id|>\n\n'+m['content']|trim+'<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}",
}


def renderer(template: str) -> ollama.Render:
    """The template as transformers renders it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(chat: ollama.Chat, generation: bool) -> str:
        try:
            texts, _ = render_jinja_template(
                [list(chat)],
                chat_template=template,
                add_generation_prompt=generation,
                bos_token="<s>",
                eos_token="</s>",
            )
        except Exception as error:
            raise BadInput("the template refuses this chat.") from error
        return str(texts[0])

    return render


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_pieces_render_what_the_template_does(name: str) -> None:
    render = renderer(TEMPLATES[name])
    pieces = ollama.pieces_of(render)
    assert pieces is not None
    chat = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "3"},
    ]
    assert pieces.render(chat, True) == render(chat, True)
    go = ollama.go_template(pieces, "<s>")
    assert go is not None and "<s>" not in go and go.endswith(pieces.assistant[0])
    assert go.count("{{ end }}") == go.count("{{ if ") + go.count("{{ range ")


def test_a_default_system_message_is_kept() -> None:
    template = "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe nice<|im_end|>\n' }}{% endif %}"
    pieces = ollama.pieces_of(renderer(template + TEMPLATES["chatml"]))
    assert pieces is not None and pieces.default_system == "Be nice"
    assert '{{ if ne (index .Messages 0).Role "system" }}' in str(ollama.go_template(pieces, ""))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ '<' + m['content'] + '>' if loop.first else m['content'] }}{% endfor %}",
        "{% for m in messages %}{{ loop.index ~ m['role'] ~ m['content'] ~ '|' }}{% endfor %}",
        "{{ messages | length }}",
        "{{ raise_exception('never') }}",
    ],
)
def test_what_is_no_row_of_messages_gets_no_template(template: str) -> None:
    assert ollama.pieces_of(renderer(template)) is None
    assert "TEMPLATE" not in ollama.modelfile("./a.gguf", "adapter.gguf", None, "", ["</s>", '"'])


def test_pieces_that_look_like_code_are_not_written() -> None:
    pieces = ollama.Pieces("", None, ("{{ evil }}", ""), ("", ""), None)
    assert ollama.go_template(pieces, "") is None
