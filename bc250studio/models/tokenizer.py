"""A model's tokenizer and chat template without torch and without AutoTokenizer: render, encode, decode.

Rendering is transformers' own (``render_jinja_template``), so a row looks as ``apply_chat_template`` would write
it; ids come from the model's tokenizer.json, or from a GGUF's metadata.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bc250studio.errors import BadInput, clean
from bc250studio.models.describe import read_json
from bc250studio.models.find import ModelSource
from bc250studio.models.gguf_header import GgufHeader, read_header

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

Message = dict[str, Any]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
                    "chat_template.json")  # fmt: skip
_GENERATION_TAGS = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize + ': ' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
"""What a base model without a template gets: `User: ...`, `Assistant: ...`, the answer closed by its end token."""


class Tokenizer:
    """Text to ids and back, and chats to text, for one model.

    Attributes:
        template: the chat template's Jinja text.
        template_from: ``"model"``, or ``"plain"`` when the model has none and :data:`PLAIN_TEMPLATE` stands in.
        bos_id, eos_id: ids or None. ``add_bos``: does the server put a BOS in front of every prompt?
        vocab_size: number of ids the tokenizer can give, added tokens included.
    """

    def __init__(
        self,
        backend: Backend,
        special: dict[str, str],
        template: str | None,
        add_bos: bool,
        named_templates: dict[str, str] | None = None,
    ) -> None:
        from tokenizers import processors

        self.backend = backend
        backend.no_truncation()
        backend.no_padding()
        # Offsets must cover every character, and nothing may be added: neither is a post-processor's business here.
        backend.post_processor = processors.Sequence([])
        self.special = special
        self.template_from = "model" if template else "plain"
        self.template = template or PLAIN_TEMPLATE
        self.named_templates = named_templates or {}
        self.add_bos = add_bos
        self.bos_id = self._id_of("bos_token")
        self.eos_id = self._id_of("eos_token")
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        if self.template_from == "plain":
            self.special.setdefault("eos_token", "")

    def _id_of(self, name: str) -> int | None:
        text = self.special.get(name)
        return self.backend.token_to_id(text) if text else None

    # -- text and ids

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``: special tokens in it are recognised, none is added."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """``tokenizers`` encodings of many texts at once, with offsets in characters, on all cores."""
        return self.backend.encode_batch(list(texts), add_special_tokens=False)

    def encode_chat(self, text: str) -> list[int]:
        """Ids of a rendered chat as the server sees it: exactly one BOS where the server adds one."""
        return self.with_bos(self.encode(text))

    def with_bos(self, ids: list[int]) -> list[int]:
        """``ids`` with a BOS in front when the server would add one and none is there."""
        if self.add_bos and self.bos_id is not None and (not ids or ids[0] != self.bos_id):
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of ``ids``; special tokens are written out unless ``skip_special``."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special)

    def token(self, token_id: int) -> str:
        """The vocabulary's own spelling of one id, empty when there is none."""
        return self.backend.id_to_token(token_id) or ""

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens marked as special (control) tokens."""
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def added_tokens(self) -> list[str]:
        """Texts of all tokens that are matched whole in a text, longest first."""
        texts = (token.content for token in self.backend.get_added_tokens_decoder().values())
        return sorted(texts, key=len, reverse=True)

    # -- chats

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        thinking: bool | None = None,
        **template_kwargs: Any,
    ) -> str:
        """The chat as text, as ``apply_chat_template(..., tokenize=False)`` writes it.

        ``thinking`` sets ``enable_thinking``; None leaves it to the template.

        Raises:
            BadInput: the template refuses these messages (its own words are in the error), or is broken.
        """
        return self._rendered(messages, tools, add_generation_prompt, thinking, template_kwargs)[0]

    def tagged_spans(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        thinking: bool | None = None,
    ) -> list[tuple[int, int]]:
        """Character ranges of the rendered chat that the template marks with ``{% generation %}``.

        Raises:
            BadInput: as :meth:`render`.
        """
        return self._rendered(messages, tools, False, thinking, {}, spans=True)[1]

    def _rendered(
        self, messages: Sequence[Message], tools: Any, prompt: bool, thinking: bool | None, extra: dict[str, Any],
        spans: bool = False,
    ) -> tuple[str, list[tuple[int, int]]]:  # fmt: skip
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        options = extra if thinking is None else {"enable_thinking": thinking, **extra}
        chat = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            rendered, found = render_jinja_template(
                conversations=[chat],
                tools=list(tools) if tools else None,
                chat_template=self._template_for(tools),
                add_generation_prompt=prompt,
                return_assistant_tokens_mask=spans,
                **{**self.special, **options},
            )
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            IndexError,
            RecursionError,
        ) as error:
            raise BadInput(f"The chat template refuses this chat: {clean(error, 200)}") from error
        return rendered[0], [tuple(span) for span in found[0]] if spans else []

    def _template_for(self, tools: Any) -> str:
        return self.named_templates.get("tool_use", self.template) if tools else self.template

    @cached_property
    def served_template(self) -> str:
        """The template without training-only ``{% generation %}`` tags, which llama.cpp's parser refuses."""
        return _GENERATION_TAGS.sub("", self.template)

    def supports(self, variable: str) -> bool:
        """Does the template read a variable such as ``tools`` or ``enable_thinking``?"""
        return variable in self.template or any(variable in text for text in self.named_templates.values())

    @cached_property
    def adds_prefix(self) -> bool:
        """Does it write a space in front of a text that stands alone (sentencepiece's prefix)?"""
        parts = json.loads(self.backend.to_str())
        text = json.dumps([parts.get("normalizer"), parts.get("pre_tokenizer")])
        return '"Prepend"' in text or '"prepend_scheme": "first"' in text or '"prepend_scheme": "always"' in text

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides ids: vocabulary, splitting, template, special tokens."""
        digest = hashlib.sha256(self.backend.to_str().encode())
        extra = [self.template, self.named_templates, self.special, self.add_bos]
        digest.update(json.dumps(extra, sort_keys=True).encode())
        return digest.hexdigest()


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """The tokenizer of a model: from tokenizer.json in its folder, else from its GGUF file.

    The last few are kept in memory; a changed file is read again.

    Raises:
        BadInput: neither is there, or it is broken; says which file.
    """
    files = [source.folder / name for name in _TOKENIZER_FILES]
    if source.gguf is not None:
        files.append(source.gguf)
    stamp = tuple((file.stat().st_mtime_ns, file.stat().st_size) if file.exists() else None for file in files)
    return _loaded(source, stamp)


@lru_cache(maxsize=4)
def _loaded(source: ModelSource, _stamp: tuple[Any, ...]) -> Tokenizer:
    if source.has_config and (source.folder / "tokenizer.json").is_file():
        return from_folder(source.folder)
    if source.gguf is not None:
        return from_gguf(source.gguf)
    hint = " It has a tokenizer.model only: save it once with transformers' AutoTokenizer to get tokenizer.json."
    raise BadInput(
        f"{source.folder} has no tokenizer.json." + (hint if (source.folder / "tokenizer.model").exists() else "")
    )


def from_gguf(path: Path | GgufHeader) -> Tokenizer:
    """The tokenizer inside a GGUF file.

    Raises:
        BadInput: the file carries none that can be rebuilt.
    """
    from bc250studio.models import gguf_tokenizer

    header = path if isinstance(path, GgufHeader) else read_header(path)
    backend = gguf_tokenizer.build(header)
    tokens = header.get("tokenizer.ggml.tokens")
    special = {}
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = header.get(f"tokenizer.ggml.{theirs}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            special[f"{ours}_token"] = tokens[index]
    template = header.get("tokenizer.chat_template")
    named = {
        key.removeprefix("tokenizer.chat_template."): value
        for key, value in header.metadata.items()
        if key.startswith("tokenizer.chat_template.") and isinstance(value, str)
    }
    return Tokenizer(backend, special, template, gguf_tokenizer.adds_bos(header), named)


def from_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder in Hugging Face's form.

    Raises:
        BadInput: tokenizer.json is missing or broken.
    """
    from tokenizers import Tokenizer as Backend

    file = folder / "tokenizer.json"
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # tokenizers raises a plain Exception
        raise BadInput(f"{file} cannot be read as a tokenizer: {clean(error, 160)}.") from error
    config = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    special = _special_tokens(folder, config)
    template, named = _templates(folder, config)
    add_bos = config.get("add_bos_token")
    if not isinstance(add_bos, bool):
        bos = special.get("bos_token")
        first = backend.encode("x", add_special_tokens=True).ids[:1]
        add_bos = bos is not None and first == [backend.token_to_id(bos)]
    return Tokenizer(backend, special, template, add_bos, named)


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    tables = [config]
    if (folder / "special_tokens_map.json").is_file():
        tables.insert(0, read_json(folder / "special_tokens_map.json"))
    found: dict[str, str] = {}
    for table in tables:
        for key, value in table.items():
            text = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(text, str):
                found[key] = text
    return found


def _templates(folder: Path, config: dict[str, Any]) -> tuple[str | None, dict[str, str]]:
    """The default template and the others by name; a separate .jinja file wins over tokenizer_config.json."""
    named: dict[str, str] = {}
    inside = config.get("chat_template")
    if isinstance(inside, str):
        named["default"] = inside
    elif isinstance(inside, list):
        named.update({str(t["name"]): str(t["template"]) for t in inside if isinstance(t, dict) and "template" in t})
    elif isinstance(inside, dict):
        named.update({str(k): str(v) for k, v in inside.items()})
    for file in (folder / "chat_template.json",):
        if file.is_file() and isinstance(read_json(file).get("chat_template"), str):
            named["default"] = read_json(file)["chat_template"]
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    for file in [*more, folder / "chat_template.jinja"]:
        if file.is_file():
            named["default" if file.name == "chat_template.jinja" else file.stem] = file.read_text("utf-8")
    default = named.pop("default", None)
    return default, named
