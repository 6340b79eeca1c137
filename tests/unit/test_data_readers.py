"""Readers: what a file says comes out, row by row, and no bytes break them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bc250studio.data import files
from bc250studio.data.files import locate, read_file
from bc250studio.errors import BadInput

FAST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def rows(path: Path) -> list:
    return [raw.value if raw.problem is None else raw for raw in read_file(path, [])]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_keep_their_numbers_past_blank_and_broken_ones(tmp_path):
    found = list(read_file(write(tmp_path / "a.jsonl", '{"a":1}\n\n{"a":\n\xef{"b":2}\n{"a":3}'), []))
    assert [(r.number, r.problem is None) for r in found] == [(1, True), (3, False), (4, False), (5, True)]
    assert found[1].problem.startswith("broken JSON")


def test_a_bad_byte_costs_one_line(tmp_path):
    found = list(read_file(write(tmp_path / "a.jsonl", b'{"a":"\xff"}\n{"a":"ok"}\n'), []))
    assert found[0].problem == "not UTF-8 text (byte 7)" and found[1].value == {"a": "ok"}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_list_is_read_whatever_the_ending(tmp_path, indent, name):
    values = [{"text": f"row {i}", "nested": {"x": [1, 2, None]}} for i in range(500)]
    assert rows(write(tmp_path / name, json.dumps(values, indent=indent))) == values


def test_a_list_larger_than_the_window(tmp_path):
    values = [{"text": "é" * 700_000}, {"text": "x"}, {"text": "y" * 3_000_000}, {"n": 12345678901234567890}]
    assert rows(write(tmp_path / "a.json", json.dumps(values, ensure_ascii=False))) == values


def test_objects_one_after_the_other_and_wrapped_lists(tmp_path):
    assert rows(write(tmp_path / "a.json", '{"a": 1}\n{"a": 2}\n')) == [{"a": 1}, {"a": 2}]
    assert rows(write(tmp_path / "b.json", '{\n"a": 1}\n{\n"a": 2}')) == [{"a": 1}, {"a": 2}]
    assert rows(write(tmp_path / "c.json", '{"version": 1, "data": [{"a": 1}, {"a": 2}]}')) == [{"a": 1}, {"a": 2}]
    assert rows(write(tmp_path / "d.json", '{"rows": [{"row": {"a": 1}}]}')) == [{"a": 1}]
    assert rows(write(tmp_path / "e.json", '{"messages": [{"role": "user", "content": "x"}]}'))[0]["messages"]


def test_a_broken_element_does_not_hide_the_rest(tmp_path):
    found = list(read_file(write(tmp_path / "a.json", '[{"a": 1}, {"a": oops}, {"a": 3}, {"a" 4}, {"a": 5}]'), []))
    assert [r.value for r in found if r.problem is None] == [{"a": 1}, {"a": 3}, {"a": 5}]
    assert [r.number for r in found if r.problem] == [2, 4]


def test_a_list_that_is_not_closed_says_so(tmp_path):
    found = list(read_file(write(tmp_path / "a.json", '[{"a": 1}, {"a": 2}'), []))
    assert found[1].value == {"a": 2} and "before the list is closed" in found[2].problem


def test_conversations_as_top_level_lists(tmp_path):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert rows(write(tmp_path / "a.json", json.dumps([chat, chat]))) == [chat, chat]
    assert rows(write(tmp_path / "a.jsonl", json.dumps(chat) + "\n" + json.dumps(chat))) == [chat, chat]


def test_csv_cells_are_what_the_file_says(tmp_path):
    text = (
        '\ufeffquestion;answer\r\n"What; is\r\n""it""?";null\r\nNA;007\r\n'
        ';1e5\r\ntrue;2024-01-01\r\n  pad ;"line\nbreak"\r\n'
    )
    assert rows(write(tmp_path / "a.csv", text)) == [
        {"question": 'What; is\r\n"it"?', "answer": "null"},
        {"question": "NA", "answer": "007"},
        {"question": "", "answer": "1e5"},
        {"question": "true", "answer": "2024-01-01"},
        {"question": "  pad ", "answer": "line\nbreak"},
    ]


def test_csv_rows_that_do_not_fit_are_named_by_line(tmp_path):
    found = list(read_file(write(tmp_path / "a.csv", 'a,b\n1,2\n"x\ny",2,3\n4,5\n6\n'), []))
    assert [(r.number, r.problem) for r in found] == [
        (2, None),
        (3, "broken CSV: 3 cells where the header has 2"),
        (5, None),
        (6, "broken CSV: 1 cells where the header has 2"),
    ]


def test_csv_in_latin_1_and_with_a_doubled_header(tmp_path):
    notes: list[str] = []
    found = list(
        read_file(write(tmp_path / "a.csv", "prompt,prompt,completion\nZürich,x,ñ\n".encode("latin-1")), notes)
    )
    assert found[0].value == {"prompt": "Zürich", "prompt (2)": "x", "completion": "ñ"}
    assert any("more than once" in n for n in notes) and any("Windows-1252" in n for n in notes)


def test_csv_of_an_old_mac(tmp_path):
    assert rows(write(tmp_path / "a.csv", 'q,a\r1,"x\ry"\r3,4\r')) == [{"q": "1", "a": "x\ry"}, {"q": "3", "a": "4"}]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(tmp_path, delimiter):
    ending = "tsv" if delimiter == "\t" else "csv"
    assert rows(write(tmp_path / f"a.{ending}", f"q{delimiter}a\n1{delimiter}2\n")) == [{"q": "1", "a": "2"}]


def test_text_by_paragraphs_or_by_lines(tmp_path):
    assert rows(write(tmp_path / "a.txt", "one\ntwo\r\n\r\nthree\n")) == ["one\ntwo", "three"]
    assert rows(write(tmp_path / "b.txt", "one\ntwo\n")) == ["one", "two"]


def test_parquet_keeps_nesting(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = [
        {"messages": [{"role": "user", "content": "hi"}], "n": i, "s": None if i % 2 else "x"} for i in range(600)
    ]
    pq.write_table(pa.Table.from_pylist(values), tmp_path / "a.parquet")
    assert rows(tmp_path / "a.parquet") == values


def test_gzip_whole_and_cut(tmp_path):
    packed = gzip.compress(b"".join(b'{"a": %d}\n' % i for i in range(5000)))
    assert len(rows(write(tmp_path / "a.jsonl.gz", packed))) == 5000
    cut = list(read_file(write(tmp_path / "b.jsonl.gz", packed[: len(packed) // 2]), []))
    assert cut[-1].problem.startswith("broken") and len(cut) > 1000


def test_utf_16_is_read(tmp_path):
    assert rows(write(tmp_path / "a.csv", "q,a\nhé,日本\n".encode("utf-16"))) == [{"q": "hé", "a": "日本"}]


def test_folder_reads_its_parts_in_order_and_keeps_splits_apart(tmp_path):
    write(tmp_path / "b.jsonl", '{"text": "2"}\n')
    write(tmp_path / "a.jsonl", '{"text": "1"}\n')
    write(tmp_path / "README.md", "no data")
    assert [r.value["text"] for r in locate(str(tmp_path)).rows()] == ["1", "2"]
    split = tmp_path / "split"
    split.mkdir()
    for name in ("train-00.jsonl", "train-01.jsonl", "validation.jsonl", "test.jsonl"):
        write(split / name, json.dumps({"text": name}) + "\n")
    dataset = locate(str(split))
    assert [p.name for p in dataset.files] == ["train-00.jsonl", "train-01.jsonl"]
    assert [p.name for p in dataset.evaluation] == ["validation.jsonl"]
    assert "test.jsonl" in dataset.notes[0]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("nowhere.jsonl", "no such file"),
        ("empty.jsonl", "is empty"),
        ("model.bin", "an ending that is not known"),
        ("folder", "holds no"),
        ("dat.jsonl", "Did you mean 'data.jsonl'?"),
        ("owner/name", "hub:owner/name"),
    ],
)
def test_what_cannot_be_located_is_said_in_a_sentence(tmp_path, monkeypatch, reference, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "empty.jsonl", "")
    write(tmp_path / "model.bin", "x")
    write(tmp_path / "data.jsonl", "{}")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match=words.replace("?", r"\?")):
        locate(reference)


def test_a_hub_dataset_that_is_not_here_is_said_in_a_sentence():
    with pytest.raises(BadInput, match="not on this machine"):
        locate("hub:nobody/nothing-at-all")
    with pytest.raises(BadInput, match="hub:owner/name"):
        locate("hub:a/b/c")


def test_a_hub_dataset_in_the_cache_is_read(tmp_path, monkeypatch):
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    write(snapshot / "train.jsonl", '{"text": "x"}\n')
    asked = {}

    def fake(name, **options):
        asked.update(options, name=name)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fake)
    dataset = locate("hub:owner/name@v2")
    assert [r.value["text"] for r in dataset.rows()] == ["x"]
    assert (asked["name"], asked["revision"], asked["repo_type"]) == ("owner/name", "v2", "dataset")


@FAST
@given(data=st.binary(max_size=400), kind=st.sampled_from(["jsonl", "json", "csv", "tsv", "txt", "jsonl.gz"]))
def test_no_bytes_break_a_reader(tmp_path, data, kind):
    path = write(tmp_path / f"a.{kind}", data)
    try:
        for raw in read_file(path, []):
            assert raw.number >= 1 and (raw.problem is None or raw.problem)
    except BadInput as error:  # a header that cannot be read is said in a sentence
        assert "header" in str(error) and str(error).endswith(".")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@FAST
@given(values=st.lists(st.dictionaries(st.text(max_size=8), _json, max_size=3), min_size=2, max_size=6), data=st.data())
def test_lists_survive_any_window(tmp_path, values, data, monkeypatch):
    monkeypatch.setattr("bc250studio.data.read_json._CHUNK", data.draw(st.integers(1, 40)))
    path = write(
        tmp_path / "a.json", json.dumps(values, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "replace")
    )
    assert len(list(read_file(path, []))) == len(values)
    if all(r.problem is None for r in read_file(path, [])) and b"?" not in path.read_bytes():
        assert rows(path) == values


_cell = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r"), max_size=12)


@FAST
@given(cells=st.lists(st.tuples(_cell, _cell), min_size=1, max_size=6))
def test_csv_round_trip(tmp_path, cells):
    import csv

    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        writer.writerow(["prompt", "completion"])
        writer.writerows(cells)
    assert [(r["prompt"], r["completion"]) for r in rows(path)] == cells


def test_a_row_larger_than_the_limit_is_left_out(tmp_path, monkeypatch):
    for module in ("read_json", "read_text"):
        monkeypatch.setattr(f"bc250studio.data.{module}.MAX_ROW_BYTES", 1000)
    big = json.dumps({"text": "x" * 5000})
    found = list(read_file(write(tmp_path / "a.jsonl", f'{big}\n{{"text": "ok"}}\n'), []))
    assert [r.problem is None for r in found] == [False, True] and "longer than" in found[0].problem


def test_kinds_by_ending():
    assert files.kind_of(Path("A.JSONL.GZ")) == "lines" and files.kind_of(Path("x.parquet")) == "parquet"
    assert files.kind_of(Path("x.gguf")) is None
