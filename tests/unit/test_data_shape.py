"""Rows to chats: roles, tools, odd shapes, and the reason for every row that is left out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bc250studio.data import verdict
from bc250studio.data.raw import Raw
from bc250studio.data.recognise import FORMATS, Recognition, recognise
from bc250studio.data.shape import Chat, shape
from bc250studio.data.verdict import Dropped


def chat(value, **options) -> Chat:
    return shape(value, recognise([Raw(1, value)]), **options)


def pairs(found: Chat) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in found.messages]


def turns(*roles: str) -> dict:
    return {"messages": [{"role": r, "content": f"{r} {i}"} for i, r in enumerate(roles)]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"instruction": "do", "input": "", "output": "ok"}, [("user", "do"), ("assistant", "ok")]),
        ({"instruction": "do", "input": "x", "output": "ok"}, [("user", "do\n\nx"), ("assistant", "ok")]),
        ({"instruction": "do", "output": 7}, [("user", "do"), ("assistant", "7")]),
        (
            {"instruction": "c", "output": "d", "system": "s", "history": [["a", "b"]]},
            [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")],
        ),
        (
            {"instruction": "sort", "instances": [{"input": "2 1", "output": "1 2"}]},
            [("user", "sort\n\n2 1"), ("assistant", "1 2")],
        ),
        ({"question": "q", "answer": "a"}, [("user", "q"), ("assistant", "a")]),
        ({"prompt": " p ", "completion": " c "}, [("user", " p "), ("assistant", " c ")]),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
            [("system", "s"), ("user", "q"), ("assistant", "a")],
        ),
        (
            {"conversation": [{"user": "q", "assistant": "a"}, {"user": "q2", "assistant": "a2"}]},
            [("user", "q"), ("assistant", "a"), ("user", "q2"), ("assistant", "a2")],
        ),
        ([{"role": "model", "content": "x"}, {"role": "user", "content": "y"}], verdict.STARTS_WITH_ANSWER),
        (turns("user", "model"), [("user", "user 0"), ("assistant", "model 1")]),
        (turns("developer", "human", "bot"), [("system", "developer 0"), ("user", "human 1"), ("assistant", "bot 2")]),
        (turns("user", "user", "assistant"), verdict.TWO_USERS),
        (turns("user", "assistant", "assistant"), verdict.TWO_ANSWERS),
        (turns("user", "system", "assistant"), verdict.MISPLACED_SYSTEM),
        (turns("assistant", "user"), verdict.STARTS_WITH_ANSWER),
        (turns("system"), verdict.NO_ANSWER),
        (turns("user"), verdict.NO_ANSWER),
        (turns("user", "narrator"), verdict.UNKNOWN_ROLE),
        (turns("user", "tool", "assistant"), verdict.MISPLACED_TOOL),
        (turns("user", "assistant", "user"), [("user", "user 0"), ("assistant", "assistant 1")]),
        ({"messages": []}, verdict.NO_ANSWER),
        ({"question": "q", "answer": ""}, verdict.EMPTY_ANSWER),
        ({"question": "q", "answer": " \n"}, verdict.EMPTY_ANSWER),
        ({"question": "q", "answer": None}, verdict.EMPTY_ANSWER),
        ({"question": " ", "answer": "a"}, verdict.EMPTY_PROMPT),
        ({"question": "q", "answer": ["a"]}, verdict.NOT_TEXT),
        ({"question": "q", "answer": True}, verdict.NOT_TEXT),
        ({"question": "q", "answer": "\ud83d"}, verdict.NOT_TEXT),
        ({"question": "q", "answer": "I am {{name}}."}, verdict.PLACEHOLDER),
        ({"question": "q", "answer": "Write `{{name}}` or\n```\n{{ x }}\n```"}, None),
        ({"text": "  "}, verdict.EMPTY_TEXT),
        ({"text": "plain"}, []),
        ({"instruction": "i", "instances": [{"output": "a"}, {"output": "b"}]}, verdict.UNKNOWN_SHAPE),
        ({"prompt": "p", "chosen": "c", "rejected": "r"}, verdict.PREFERENCE),
    ],
)
def test_rows(value, expected):
    recognition = (
        Recognition("messages", {"messages": "messages"}, [])
        if isinstance(value, dict) and "messages" in value
        else None
    )
    if isinstance(expected, str):
        with pytest.raises(Dropped) as dropped:
            shape(value, recognition) if recognition else chat(value)
        assert dropped.value.reason == expected
    else:
        found = shape(value, recognition) if recognition else chat(value)
        assert expected is None or pairs(found) == expected


def test_content_parts_are_joined_and_pictures_refused():
    part = {"type": "text", "text": "a"}
    answer = {"role": "assistant", "content": "x"}
    assert pairs(chat({"messages": [{"role": "user", "content": [part, "b", part]}, answer]}))[0] == ("user", "aba")
    with pytest.raises(Dropped, match="a part of type image_url"):
        chat({"messages": [{"role": "user", "content": [part, {"type": "image_url"}]}, answer]})


def test_openai_and_sharegpt_tool_calls_come_out_the_same():
    tools = [{"name": "f", "parameters": {}}]
    share = {
        "conversations": [
            {"from": "human", "value": "t?"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
            {"from": "observation", "value": "12"},
            {"from": "gpt", "value": "noon"},
        ],
        "tools": json.dumps(tools),
    }
    openai = {
        "messages": [
            {"role": "user", "content": "t?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "content": "12", "tool_call_id": "1"},
            {"role": "assistant", "content": "noon"},
        ],
        "tools": [{"type": "function", "function": tools[0]}],
    }
    one, two = chat(share), chat(openai)
    assert one.tools == two.tools == [{"type": "function", "function": tools[0]}]
    assert pairs(one) == pairs(two)
    assert one.messages[1]["tool_calls"][0]["function"] == two.messages[1]["tool_calls"][0]["function"]
    assert two.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_a_call_after_words_belongs_to_the_same_answer():
    found = chat(
        {
            "conversations": [
                {"from": "human", "value": "t?"},
                {"from": "gpt", "value": "Let me see."},
                {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
                {"from": "observation", "value": "12"},
                {"from": "gpt", "value": "noon"},
            ]
        }
    )
    assert pairs(found)[1] == ("assistant", "Let me see.") and found.messages[1]["tool_calls"]


def test_chosen_answers_when_asked():
    row = {"prompt": "p", "chosen": "c", "rejected": "r"}
    assert pairs(chat(row, use_chosen=True)) == [("user", "p"), ("assistant", "c")]
    whole = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "c"}]
    assert pairs(chat({"prompt": "p", "chosen": whole, "rejected": whole}, use_chosen=True)) == [
        ("user", "p"),
        ("assistant", "c"),
    ]
    share = {
        "conversations": [{"from": "human", "value": "p"}],
        "chosen": {"from": "gpt", "value": "c"},
        "rejected": {"from": "gpt", "value": "r"},
    }
    assert pairs(chat(share, use_chosen=True)) == [("user", "p"), ("assistant", "c")]
    kto = [{"prompt": "p", "completion": "c", "label": flag} for flag in (True, False)]
    assert pairs(chat(kto[0], use_chosen=True)) == [("user", "p"), ("assistant", "c")]
    with pytest.raises(Dropped, match="marked as bad"):
        chat(kto[1], use_chosen=True)


def test_a_system_message_for_rows_without_one():
    row = {"question": "q", "answer": "a"}
    assert pairs(chat(row, system="S"))[0] == ("system", "S")
    with_one = {"messages": [{"role": "system", "content": "own"}, *chat(row).messages]}
    assert pairs(chat(with_one, system="S"))[0] == ("system", "own")


def test_placeholders_can_be_filled():
    row = {"question": "who?", "answer": "I am {{name}} by {{ author }}."}
    filled = chat(row, fill={"name": "Bo", "author": "Us"})
    assert filled.messages[1]["content"] == "I am Bo by Us."
    with pytest.raises(Dropped):
        chat(row, fill={"name": "Bo"})


def test_learning_only_the_completion_of_a_conversational_pair():
    prompt = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    found = chat({"prompt": prompt, "completion": [{"role": "assistant", "content": "d"}]})
    assert len(found.messages) == 4 and found.learn_from == 3


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["role", "content", "from", "value", "tool_calls", "function", "name", "arguments", "x", "user", "chosen"]
    ), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
_COLUMNS = {
    slot: slot
    for slot in (
        *("messages", "instruction", "input", "output", "prompt", "completion", "question", "answer", "text", "system"),
        *("tools", "history", "instances", "chosen", "rejected", "label"),
    )
}


@settings(max_examples=400, deadline=None)
@given(
    row=st.dictionaries(st.sampled_from(list(_COLUMNS)), _anything, max_size=6) | _anything,
    format=st.sampled_from(FORMATS),
    chosen=st.booleans(),
    kto=st.booleans(),
)
def test_every_row_is_a_chat_or_has_a_reason(row, format, chosen, kto):
    try:
        found = shape(row, Recognition(format, dict(_COLUMNS), [], kto=kto), use_chosen=chosen)
    except Dropped as dropped:
        assert dropped.reason
        return
    if found.text is None:
        assert found.messages[-1]["role"] == "assistant"
        assert all(isinstance(m["content"], str) for m in found.messages)
        found.identity().encode()
        found.prompt_key.encode()
