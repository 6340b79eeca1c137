"""The mask: only answers are learnt, behind the prompt that is served, through the token that closes the turn."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bc250studio.data.encode import Encoded, Encoder
from bc250studio.data.mask import Masker
from bc250studio.data.preview import segments
from bc250studio.data.shape import Chat
from bc250studio.data.verdict import Dropped
from bc250studio.models.find import find
from bc250studio.models.gguf_header import read_header
from bc250studio.models.tokenizer import Tokenizer, from_gguf

TEMPLATES = Path(__file__).parents[1] / "templates"
FAMILIES = ("smollm2", "qwen3", "llama3", "gemma", "minicpm5")


@cache
def tokenizer_for(name: str) -> Tokenizer:
    """The demo model's ids with another family's template; its markers that are no tokens here are added as such."""
    from tokenizers import AddedToken

    source = find("demo:smollm2-135m")
    assert source.gguf is not None
    header = read_header(source.gguf)
    header.metadata["tokenizer.ggml.pre"] = {"qwen3": "qwen2", "llama3": "llama3", "minicpm5": "llama3"}.get(
        name, "smollm"
    )
    tokenizer = from_gguf(header)
    text = (TEMPLATES / f"{name}.jinja").read_text() if name in FAMILIES else name
    markers = ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>", "<end_of_turn>", "<s>"]
    tokenizer.backend.add_special_tokens([AddedToken(m, normalized=False, special=True) for m in markers])
    return Tokenizer(tokenizer.backend, {**tokenizer.special, "bos_token": "<s>"}, text, add_bos=name in FAMILIES[2:])


def encode(tokenizer: Tokenizer, examples: list) -> list[Encoded]:
    return [row for rows in Encoder(tokenizer).encode(examples) for row in rows]


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def answer(text: str, **more) -> dict:
    return {"role": "assistant", "content": text, **more}


def learnt(name: str, messages: list[dict], train_on: str = "assistant", thinking: bool | None = None, **chat) -> list:
    """[(whole text read back from the ids, [learnt stretches])] of every example."""
    tokenizer = tokenizer_for(name)
    examples = Masker(tokenizer, train_on, thinking).examples(Chat(messages, **chat))
    found = []
    for row in encode(tokenizer, examples):
        parts = segments(tokenizer, row.ids, row.labelled)
        found.append(("".join(p.text for p in parts), [p.text for p in parts if p.learnt]))
    return found


CLOSE = dict.fromkeys(FAMILIES, "<|im_end|>") | {"llama3": "<|eot_id|>", "gemma": "<end_of_turn>"}


@pytest.mark.parametrize("name", FAMILIES)
def test_one_answer_with_its_closing_token(name):
    thinking = False if name == "minicpm5" else None
    ((text, parts),) = learnt(name, [user("Say hi."), answer("Hi there.")], thinking=thinking)
    assert parts == ["Hi there." + CLOSE[name]]
    assert text.count("<s>") == (1 if name in ("llama3", "gemma", "minicpm5") else 0)


@pytest.mark.parametrize("name", ["smollm2", "llama3", "gemma"])
def test_all_answers_of_a_chat_or_the_last(name):
    chat = [user("a"), answer("one"), user("b"), answer("two")]
    close = CLOSE[name]
    assert learnt(name, chat)[0][1] == ["one" + close, "two" + close]
    assert learnt(name, chat, train_on="last")[0][1] == ["two" + close]
    assert learnt(name, chat, learn_from=3)[0][1] == ["two" + close]
    weighted = [user("a"), answer("one", weight=0), user("b"), answer("two")]
    assert learnt(name, weighted)[0][1] == ["two" + close]


def test_all_text():
    ((text, parts),) = learnt("smollm2", [user("a"), answer("b")], train_on="all")
    assert "".join(parts) == text[len("<|im_start|>") :]  # the first token has nothing before it


def test_plain_text_is_closed_by_the_end_token():
    tokenizer = tokenizer_for("smollm2")
    (row,) = encode(tokenizer, Masker(tokenizer).examples(Chat([], text="Once upon a time")))
    assert tokenizer.decode(row.ids) == "Once upon a time<|im_end|>"
    assert row.labelled == [False] + [True] * (len(row.ids) - 1)


def test_thoughts_are_learnt_and_empty_ones_of_the_template_are_not():
    ((text, parts),) = learnt("qwen3", [user("q"), answer("yes", reasoning_content="hm")])
    assert parts == ["<think>\nhm\n</think>\n\nyes<|im_end|>"]
    ((text, parts),) = learnt("qwen3", [user("q"), answer("yes")])
    assert "<think>\n\n</think>\n\n" in text and parts == ["yes<|im_end|>"]
    ((text, parts),) = learnt("qwen3", [user("q"), answer("yes")], thinking=False)
    assert "<think>\n\n</think>\n\n" in text and parts == ["yes<|im_end|>"]


def test_a_template_that_drops_thoughts_from_history_gets_a_row_an_answer():
    chat = [user("a"), answer("<think>\nx\n</think>\n\none"), user("b"), answer("<think>\ny\n</think>\n\ntwo")]
    first, second = learnt("qwen3", chat)
    assert first[1] == ["<think>\nx\n</think>\n\none<|im_end|>"] and "two" not in first[0]
    assert second[1] == ["<think>\ny\n</think>\n\ntwo<|im_end|>"]
    assert "x" not in second[0].split("two")[0].replace("<|im_end|>", "").split("assistant")[1]


def test_an_answer_stands_behind_the_thought_that_serving_puts_in():
    ((text, parts),) = learnt("minicpm5", [user("q"), answer("yes")], thinking=False)
    assert text.endswith("assistant\n<think>\n\n</think>\n\nyes<|im_end|>\n") and parts == ["yes<|im_end|>"]
    ((text, parts),) = learnt("minicpm5", [user("q"), answer("yes", reasoning_content="hm")], thinking=True)
    assert text.endswith("assistant\n<think>\nhm\n</think>\n\nyes<|im_end|>\n")
    assert parts == ["hm\n</think>\n\nyes<|im_end|>"]
    with pytest.raises(Dropped, match=r"data\.thinking = false"):
        learnt("minicpm5", [user("q"), answer("yes")], thinking=True)
    with pytest.raises(Dropped, match=r"data\.thinking = true"):
        learnt("minicpm5", [user("q"), answer("yes", reasoning_content="hm")], thinking=False)


def test_tool_calls_are_learnt_and_results_are_not():
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    chat = [user("t?"), answer("", tool_calls=[call]), {"role": "tool", "content": "12"}, answer("noon")]
    tools = [{"type": "function", "function": {"name": "f"}}]
    ((text, parts),) = learnt("llama3", chat, tools=tools)
    assert parts == ['{"name": "f", "parameters": {"a": 1}}<|eot_id|>', "noon<|eot_id|>"] and '"name": "f"' in text
    ((text, parts),) = learnt("smollm2", chat, tools=tools)  # knows no calls: written out as text
    assert parts == ['{"name": "f", "arguments": {"a": 1}}<|im_end|>', "noon<|im_end|>"]
    assert "assistant\n12" not in text and "tool\n12" in text


TAGGED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_generation_tags_are_used_and_stretched_over_the_closing_token():
    masker = Masker(tokenizer_for(TAGGED))
    assert masker.tagged
    chat = [user("a"), answer("one"), user("b"), answer("two ")]
    assert learnt(TAGGED, chat)[0][1] == ["one<|im_end|>", "two <|im_end|>"]
    assert learnt(TAGGED, chat, train_on="last")[0][1] == ["two <|im_end|>"]
    assert "generation %}" not in tokenizer_for(TAGGED).served_template
    with_close = TAGGED.replace("{% endgeneration %}", "{{ '<|im_end|>' }}{% endgeneration %}").replace(
        "{{ '<|im_end|>\n' }}", "{% if m.role != 'assistant' %}{{ '<|im_end|>' }}{% endif %}{{ '\n' }}"
    )
    assert learnt(with_close, chat)[0][1] == ["one<|im_end|>", "two <|im_end|>"]


def test_a_template_that_hides_the_answer_is_refused_and_never_trains():
    hiding = "{% for m in messages %}{{ m.role }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
    with pytest.raises(Dropped, match="mask cannot be derived"):
        learnt(hiding, [user("a"), answer("one")])
    rewriting = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(Dropped, match="mask cannot be derived"):
        learnt(rewriting, [user("a"), answer("one")])


def test_what_a_template_refuses_is_said_in_its_words():
    with pytest.raises(Dropped, match="Conversation roles must alternate"):
        learnt("gemma", [user("a"), {"role": "tool", "content": "x"}, answer("b")])


def test_a_base_model_gets_a_plain_template_with_an_end():
    base = tokenizer_for("smollm2")
    tokenizer = Tokenizer(base.backend, dict(base.special), None, add_bos=False)
    assert tokenizer.template_from == "plain"
    examples = Masker(tokenizer).examples(Chat([user("hi"), answer("hello")]))
    (row,) = encode(tokenizer, examples)
    assert [s.text for s in segments(tokenizer, row.ids, row.labelled) if s.learnt] == ["hello<|im_end|>"]
    assert tokenizer.decode(row.ids).startswith("User: hi\nAssistant: ")


def test_a_token_over_the_border_is_cut_as_the_server_would():
    """The prompt ends with a newline and the answer begins with one: together they would be a single token."""
    tokenizer = tokenizer_for("smollm2")
    chat = Chat([user("a"), answer("\n\n  x")])
    (example,) = Masker(tokenizer).examples(chat)
    (row,) = encode(tokenizer, [example])
    prompt = tokenizer.render(chat.messages[:1], add_generation_prompt=True)
    first = row.labelled.index(True)
    assert row.ids[:first] == tokenizer.encode(prompt)
    assert tokenizer.encode(example.text)[: first + 1] != row.ids[: first + 1]


def test_only_the_answer_over_the_border_gets_a_row_of_its_own():
    chat = [user("a"), answer("\n\nx"), user("b"), answer("y")]
    (_, first), (whole, rest) = learnt("smollm2", chat)
    assert first == ["\n\nx<|im_end|>"] and rest == ["y<|im_end|>"] and "\n\nx" in whole


_letters = st.characters(blacklist_categories=("Cs", "Cc"), max_codepoint=0xFFFF)
_text = st.text(_letters | st.sampled_from("\n\n  \t"), min_size=1, max_size=20).filter(lambda t: t.strip())


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(FAMILIES), turns=st.lists(st.tuples(_text, _text), min_size=1, max_size=3),
    which=st.sampled_from(["assistant", "last"]),
)  # fmt: skip
def test_prompt_ids_are_the_served_ones_and_answers_come_back(name, turns, which):
    tokenizer = tokenizer_for(name)
    messages = [m for question, reply in turns for m in (user(question), answer(reply))]
    thinking = False if name in ("qwen3", "minicpm5") else None
    # A few bytes are missing from SmolLM2's vocabulary; what it cannot write cannot come back.
    assume(all(tokenizer.decode(tokenizer.encode(m["content"])) == m["content"] for m in messages))
    try:
        examples = Masker(tokenizer, which, thinking).examples(Chat(messages))
    except Dropped:
        return
    for row in encode(tokenizer, examples):
        assert len(row.ids) == len(row.labelled) and any(row.labelled) and not row.labelled[0]
        for turn in row.example.turns:
            before = row.example.messages[:turn]
            prompt = tokenizer.encode_chat(tokenizer.render(before, add_generation_prompt=True, thinking=thinking))
            assert row.ids[: len(prompt)] == prompt
            if row.labelled[len(prompt)]:
                kept = tokenizer.decode(row.ids[len(prompt) :])
                assert row.example.messages[turn]["content"].split("</think>")[-1].strip() in kept
                break
        else:
            raise AssertionError("no answer of the row is learnt behind its prompt")
