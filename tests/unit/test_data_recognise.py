"""Recognising: each common format, whatever the order of rows; ambiguity is a question, preference is refused."""

from __future__ import annotations

import pytest

from bc250studio.data.raw import Raw
from bc250studio.data.recognise import recognise
from bc250studio.errors import BadInput

CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
SHARE = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]


def look(*values, **options):
    return recognise([Raw(i, v) for i, v in enumerate(values, 1)], **options)


@pytest.mark.parametrize(
    ("value", "format", "columns"),
    [
        ({"messages": CHAT}, "messages", {"messages": "messages"}),
        ({"conversations": CHAT}, "messages", {"messages": "conversations"}),
        ({"conversations": SHARE}, "sharegpt", {"messages": "conversations"}),
        ({"conversations": SHARE, "tools": "[]", "system": "s"}, "sharegpt", {"tools": "tools", "system": "system"}),
        ({"messages": '[{"role": "user", "content": "x"}]'}, "messages", {"messages": "messages"}),
        (CHAT, "messages", {}),
        ({"dialog": [{"user": "q", "assistant": "a"}]}, "messages", {"messages": "dialog"}),
        ({"instruction": "i", "input": "", "output": "o"}, "alpaca", {"input": "input"}),
        ({"instruction": "i", "context": "c", "response": "o"}, "alpaca", {"input": "context", "output": "response"}),
        ({"Instruction": "i", "Output": "o"}, "alpaca", {"instruction": "Instruction"}),
        ({"instruction": "i", "input": "", "output": "o", "text": "all"}, "alpaca", {}),
        ({"instruction": "i", "instances": [{"input": "", "output": "o"}]}, "alpaca", {"instances": "instances"}),
        ({"prompt": "p", "completion": "c"}, "prompt_completion", {}),
        ({"prompt": "p", "response": "c"}, "prompt_completion", {"completion": "response"}),
        ({"input": "p", "output": "c"}, "prompt_completion", {"prompt": "input", "completion": "output"}),
        ({"prompt": CHAT[:1], "completion": CHAT[1:]}, "prompt_completion", {}),
        ({"question": "q", "answer": "a"}, "question_answer", {}),
        ({"query": "q", "response": "a"}, "question_answer", {"question": "query", "answer": "response"}),
        ({"problem": "q", "solution": "a"}, "question_answer", {}),
        ({"text": "t"}, "text", {"text": "text"}),
        ("just text", "text", {}),
        ({"prompt": "p", "chosen": "c", "rejected": "r"}, "preference", {"chosen": "chosen"}),
        ({"chosen": CHAT, "rejected": CHAT}, "preference", {}),
        ({"conversations": SHARE[:1], "chosen": SHARE[1], "rejected": SHARE[1]}, "preference", {}),
        ({"prompt": "p", "completion": "c", "label": True}, "preference", {"label": "label"}),
        ({"messages": CHAT, "kto_tag": False}, "preference", {}),
    ],
)
def test_formats(value, format, columns):
    found = look(value, value)
    assert found.format == format and found.question is None
    assert columns.items() <= found.columns.items()


def test_order_and_late_type_changes_do_not_matter():
    plain = {"instruction": "i", "input": None, "output": "o"}
    late = {"instruction": "i", "input": "text now", "output": 7}
    for rows in ([plain] * 30 + [late], [late] + [plain] * 30):
        assert look(*rows).format == "alpaca"
    assert look(*([{"junk": 1}] * 30), *([{"question": "q", "answer": "a"}] * 40)).format == "question_answer"


def test_more_than_one_reading_is_a_question_with_a_default():
    both = {"messages": CHAT, "prompt": "p", "completion": "c"}
    found = look(both, both)
    assert found.format == "messages" and found.options == ["messages", "prompt_completion"]
    assert "--format messages" in found.question
    assert look(both, format="prompt_completion").question is None


def test_more_than_one_column_is_a_question_with_a_default():
    row = {"problem": "p", "solution": "s", "answer": "4"}
    found = look(row, row)
    assert found.format == "question_answer" and "--columns answer=answer" in found.question
    told = look(row, columns={"answer": "solution"}, format="question_answer")
    assert told.columns == {"question": "problem", "answer": "solution"} and told.question is None


def test_columns_by_hand():
    row = {"Frage": "q", "Antwort": "a", "Rolle": "s"}
    with pytest.raises(BadInput, match="no known format"):
        look(row)
    found = look(row, columns={"prompt": "Frage", "completion": "Antwort", "system": "Rolle"})
    assert found.format == "prompt_completion" and found.columns["system"] == "Rolle"
    as_qa = look(row, columns={"prompt": "Frage", "completion": "Antwort"}, format="question_answer")
    assert as_qa.columns["question"] == "Frage" and as_qa.columns["answer"] == "Antwort"
    assert look(row, columns={"text": "Frage"}).format == "text"
    assert look({"dlg": SHARE}, columns={"messages": "dlg"}).format == "sharegpt"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"promt": "Frage"}, "Did you mean 'prompt'"),
        ({"prompt": "frage"}, "Did you mean 'Frage'"),
        ({"prompt": "Frage"}, "no column for completion"),
    ],
)
def test_wrong_columns_name_the_nearest(columns, words):
    with pytest.raises(BadInput, match=words):
        look({"Frage": "q"}, columns=columns)


def test_nothing_readable_is_said():
    with pytest.raises(BadInput, match="no row that can be read"):
        look()
    with pytest.raises(BadInput, match="no known format"):
        look([1, 2], [3, 4])
