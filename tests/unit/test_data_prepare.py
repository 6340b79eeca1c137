"""From a file to rows: totals, cutting, splitting, caching, and what never trains."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bc250studio import paths, profiles
from bc250studio.data import check, look, prepare
from bc250studio.data.report import histogram, packing
from bc250studio.data.rows import Rows
from bc250studio.data.seen import Seen, digest64
from bc250studio.data.split import choose
from bc250studio.errors import BadInput
from bc250studio.models.find import find
from bc250studio.models.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def source():
    return find("demo:smollm2-135m")


@pytest.fixture(scope="module")
def tokenizer(source):
    return load_tokenizer(source)


def profile(path: Path, **overrides):
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return profiles.from_text("", "test", overrides={"data.path": str(path), **given}).profile


def jsonl(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs(count: int) -> list[dict]:
    return [{"prompt": f"Question {i}?", "completion": f"Answer {i}."} for i in range(count)]


def rows_as_sets(rows: Rows) -> set[bytes]:
    return {ids.tobytes() for ids, _ in rows}


def test_rows_and_what_is_learnt_in_them(tmp_path, source, tokenizer):
    found = prepare(profile(jsonl(tmp_path / "a.jsonl", pairs(20))), source)
    assert len(found.train) == 18 and len(found.evaluation) == 2 and found.thinking is None
    assert found.report["rows"] == {"total": 20, "used": 20, "cut": 0, "dropped": 0}
    ids, labelled = found.train.row(0)
    assert ids.dtype == np.int32 and labelled.dtype == np.bool_ and not labelled[0]
    assert tokenizer.decode(ids[labelled]).startswith("Answer") and tokenizer.decode(ids[labelled]).endswith(
        "<|im_end|>"
    )
    assert found.train.labelled_count == int(found.train.labelled_counts.sum())
    assert sum(found.train.lengths) == len(found.train.ids)


def test_evaluation_chats_stand_beside_their_rows(tmp_path, source, tokenizer):
    found = prepare(profile(jsonl(tmp_path / "a.jsonl", pairs(40)), data__eval_fraction=0.25), source)
    assert len(found.eval_chats) == len(found.evaluation) == 10
    for chat, (ids, labelled) in zip(found.eval_chats, found.evaluation, strict=True):
        prompt = tokenizer.encode_chat(tokenizer.render(chat[:-1], add_generation_prompt=True, thinking=found.thinking))
        assert list(ids[: len(prompt)]) == prompt and labelled[len(prompt)]


def test_every_row_has_a_verdict_and_totals_add_up(tmp_path, source):
    rows = [
        json.dumps({"prompt": "good", "completion": "yes"}),
        '{"prompt": broken',
        json.dumps({"prompt": "good", "completion": "yes"}),
        json.dumps({"prompt": "empty", "completion": ""}),
        json.dumps({"prompt": "list", "completion": ["x"]}),
        json.dumps({"prompt": "I am {{name}}", "completion": "x"}),
        json.dumps({"prompt": "long " * 60, "completion": "x"}),
        json.dumps({"prompt": "cut", "completion": "word " * 200}),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    checked = check(profile(tmp_path / "a.jsonl", data__max_length=64), source)
    report = checked.report
    assert report["rows"] == {"total": 8, "used": 1, "cut": 1, "dropped": 6}
    assert report["reasons"] == {
        "broken JSON": 1,
        "duplicate": 1,
        "empty answer": 1,
        "not text": 1,
        "unfilled placeholder": 1,
        "answer cut away by length": 1,
    }
    where = {row["reason"]: row["where"] for row in report["dropped_rows"]}
    assert where["broken JSON"] == "line 2" and where["answer cut away by length"] == "line 7"
    assert report["cut_rows"][0]["where"] == "line 8"
    assert {row.where for row in checked.preview.dropped} == {f"line {n}" for n in (2, 3, 4, 5, 6, 7)}


def prompt_of(tokenizer, tokens: int) -> str:
    """A question whose rendered prompt, generation prompt included, has exactly so many tokens."""
    for words in range(1, tokens):
        text = "a" + " a" * words
        chat = [{"role": "user", "content": text}]
        if len(tokenizer.encode_chat(tokenizer.render(chat, add_generation_prompt=True))) == tokens:
            return text
    raise AssertionError(f"no prompt of {tokens} tokens")


@pytest.mark.parametrize(("prompt_tokens", "outcome"), [(40, "cut"), (63, "cut"), (64, "dropped"), (200, "dropped")])
def test_cutting_never_leaves_a_row_without_labels(tmp_path, source, tokenizer, prompt_tokens, outcome):
    rows = [
        {"prompt": prompt_of(tokenizer, prompt_tokens), "completion": "b " * 40},
        {"prompt": "short", "completion": "ok"},
    ]
    file = jsonl(tmp_path / "a.jsonl", rows)
    found = prepare(profile(file, data__max_length=64, data__eval_fraction=0.0), source)
    assert found.report["rows"][outcome] == 1 and found.report["rows"]["total"] == 2
    assert all(labelled.any() and len(ids) <= 64 for ids, labelled in found.train)
    if outcome == "cut":
        ids, labelled = found.train.row(0)
        assert len(ids) == 64 and int(labelled.sum()) == 64 - prompt_tokens
    else:
        (row,) = found.report["dropped_rows"]
        assert row["where"] == "line 1" and row["reason"] == "answer cut away by length"
        assert f"the answer begins at {prompt_tokens + 1}, max_length is 64" in row["detail"]
    strict = prepare(profile(file, data__max_length=64, data__overlong="drop"), source).report
    assert strict["rows"]["cut"] == 0 and strict["reasons"] == {"longer than max_length": 1}


def test_a_csv_is_trained_on_as_it_stands(tmp_path, source, tokenizer):
    """Text "null" and "NA", numbers and quoted newlines come out of the ids again; blanks are reported by line."""
    file = tmp_path / "a.csv"
    file.write_bytes('\ufeffprompt;completion\r\nIs it?;null\r\n"two\r\nlines";007\r\nNA;"a; b"\r\nblank;\r\n'.encode())
    found = prepare(profile(file, data__eval_fraction=0.0), source)
    texts = [tokenizer.decode(ids).split("<|im_start|>user\n")[1] for ids, _ in found.train]
    assert texts == [
        "Is it?<|im_end|>\n<|im_start|>assistant\nnull<|im_end|>\n",
        "two\r\nlines<|im_end|>\n<|im_start|>assistant\n007<|im_end|>\n",
        "NA<|im_end|>\n<|im_start|>assistant\na; b<|im_end|>\n",
    ]
    assert [(row["where"], row["reason"]) for row in found.report["dropped_rows"]] == [("line 6", "empty answer")]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"prompt": "p " * 200, "completion": "c"}] * 2, "0 of .* tokens have labels"),
        ([{"prompt": "p", "completion": ""}], "nothing to learn"),
        ([{"prompt": "p", "chosen": "c", "rejected": "r"}] * 3, "preference rows, as for DPO"),
        ([{"prompt": "p", "completion": "c", "label": True}] * 3, "KTO rows"),
        ([{"messages": [{"role": "user", "content": "q"}], "prompt": "p", "completion": "c"}], "--format messages"),
        ([{"weird": 1}], "no known format"),
    ],
)
def test_what_cannot_train_is_said_before_step_one(tmp_path, source, rows, words):
    with pytest.raises(BadInput, match=words):
        prepare(profile(jsonl(tmp_path / "a.jsonl", rows), data__max_length=64), source)
    assert not list((paths.cache_dir() / "prepared").glob("*"))


def test_prepared_data_is_found_again_until_something_that_matters_changes(tmp_path, source):
    file = jsonl(tmp_path / "a.jsonl", pairs(30))
    said: list[str] = []
    first = prepare(profile(file), source, lambda text, *_: said.append(text))
    again = prepare(profile(file, train__learning_rate=1e-3), source, lambda text, *_: said.append(text))
    assert said[-1].startswith("Prepared before") and again.digest == first.digest
    assert rows_as_sets(again.train) == rows_as_sets(first.train) and again.eval_chats == first.eval_chats
    jsonl(tmp_path / "copy.jsonl", pairs(30))
    assert prepare(profile(tmp_path / "copy.jsonl"), source).digest == first.digest
    others = [
        prepare(profile(file, data__max_length=100), source).digest,
        prepare(profile(file, train__seed=1), source).digest,
        prepare(profile(jsonl(tmp_path / "b.jsonl", pairs(31))), source).digest,
    ]
    assert len({first.digest, *others}) == 4


def test_a_torn_cache_is_made_again(tmp_path, source):
    file = jsonl(tmp_path / "a.jsonl", pairs(30))
    first = prepare(profile(file), source)
    folder = paths.cache_dir() / "prepared" / first.digest
    torn = (folder / "train-ids.npy").read_bytes()[:200]
    (folder / "train-ids.npy").unlink()  # `first` has the old file mapped
    (folder / "train-ids.npy").write_bytes(torn)
    assert rows_as_sets(prepare(profile(file), source).train) == rows_as_sets(first.train)
    assert (folder.stat().st_mode & 0o077) == 0


def test_two_processes_may_prepare_the_same(tmp_path, source):
    """The other one publishes its folder first: both end with the same rows, and nothing is left over."""
    from bc250studio.data import prepare as function
    from bc250studio.data.prepare import _keep

    file = jsonl(tmp_path / "a.jsonl", pairs(30))
    first = function(profile(file), source)
    cache = paths.cache_dir() / "prepared"
    late = cache / ".late"
    late.mkdir()
    (late / "report.json").write_text("{}")
    _keep(late, cache / first.digest)
    assert rows_as_sets(function(profile(file), source).train) == rows_as_sets(first.train)
    assert late.exists()  # its owner removes it


def test_leftovers_of_killed_processes_and_old_caches_go(tmp_path, source):
    import os

    cache = paths.private_dir(paths.cache_dir() / "prepared")
    left = cache / ".0123-killed"
    left.mkdir()
    os.utime(left, (0, 0))
    for number in range(14):
        old = cache / f"{number:064x}"
        old.mkdir()
        os.utime(old, (number, number))
    found = prepare(profile(jsonl(tmp_path / "a.jsonl", pairs(5))), source)
    names = {p.name for p in cache.iterdir()}
    assert len(names) == 12 and found.digest in names and left.name not in names


def test_the_split_is_seeded_and_keeps_equal_prompts_together(tmp_path, source):
    rows = [{"prompt": f"Question {i // 3}?", "completion": f"Answer {i}."} for i in range(60)]
    file = jsonl(tmp_path / "a.jsonl", rows)
    one, two = prepare(profile(file), source), prepare(profile(file, train__seed=7), source)
    asked = {chat[0]["content"] for chat in one.eval_chats}
    assert len(one.evaluation) == 3 * len(asked)
    assert asked != {chat[0]["content"] for chat in two.eval_chats}
    assert not rows_as_sets(one.train) & rows_as_sets(one.evaluation)


def test_a_separate_evaluation_file_and_its_leaks(tmp_path, source):
    file = jsonl(tmp_path / "a.jsonl", pairs(30))
    other = jsonl(tmp_path / "e.jsonl", [*pairs(3), {"prompt": "new?", "completion": "yes"}])
    found = prepare(profile(file, data__eval_path=str(other)), source)
    assert len(found.train) == 30 and len(found.evaluation) == 4
    assert any(note.startswith("3 prompts of the evaluation file") for note in found.report["notes"])


def test_a_folder_with_named_splits_is_not_mixed(tmp_path, source):
    jsonl(tmp_path / "train.jsonl", pairs(12))
    jsonl(tmp_path / "valid.jsonl", [{"prompt": "v?", "completion": "v"}])
    found = prepare(profile(tmp_path), source)
    assert len(found.train) == 12 and len(found.evaluation) == 1 and found.report["split"]["by"] == "file"


def test_thinking_follows_the_rows(tmp_path, tokenizer):
    """The switch of a template that has one: off for rows without thoughts, on for rows with."""
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer.special))
    template = Path(__file__).parents[1] / "templates" / "qwen3.jinja"
    (folder / "chat_template.jinja").write_text(template.read_text())
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 49152}
    config = {"model_type": "qwen3", **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    model = find(str(folder))
    without = prepare(profile(jsonl(tmp_path / "a.jsonl", pairs(9))), model)
    assert without.thinking is False and any("Thinking is off" in n for n in without.report["notes"])
    thought = [{"prompt": f"q {i}", "completion": f"<think>\nhm {i}\n</think>\n\nyes"} for i in range(9)]
    assert prepare(profile(jsonl(tmp_path / "b.jsonl", thought)), model).thinking is True
    assert prepare(profile(tmp_path / "a.jsonl", data__thinking=True), model).thinking is True


def test_looking_answers_without_reading_on(tmp_path):
    found = look(profile(jsonl(tmp_path / "a.jsonl", pairs(3))))
    assert found.format == "prompt_completion" and found.question is None


def test_preview_marks_what_is_learnt_and_jumps_to_the_ends(tmp_path, source):
    rows = [{"prompt": f"q {i}", "completion": "word " * (i + 1)} for i in range(30)]
    preview = check(profile(jsonl(tmp_path / "a.jsonl", rows)), source).preview
    assert preview.longest[0].where == "line 30" and preview.shortest[0].where == "line 1"
    row = preview.first[4]
    assert "⟦word word word word word <|im_end|>⟧" in row.marked()
    assert row.title() == f"line 5: used, {row.tokens} tokens, {row.labelled} learnt"
    hostile = jsonl(tmp_path / "b.jsonl", [{"prompt": "q", "completion": "\x1b[31mred\x07"}])
    assert "\x1b" not in check(profile(hostile), source).preview.first[0].marked()


@settings(max_examples=60, deadline=None)
@given(keys=st.lists(st.integers(1, 40), max_size=60), fraction=st.floats(0, 0.9), seed=st.integers(0, 5))
def test_no_group_is_on_both_sides(keys, fraction, seed):
    chosen = choose(keys, fraction, seed)
    assert len(chosen) == len(keys)
    inside = {k for k, c in zip(keys, chosen, strict=True) if c}
    outside = {k for k, c in zip(keys, chosen, strict=True) if not c}
    assert not inside & outside and (not keys or outside)
    if fraction > 0 and len(set(keys)) > 1:
        assert inside


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(max_size=3), max_size=400))
def test_seen_is_a_dictionary(texts):
    seen, known = Seen(4), {}
    for number, text in enumerate(texts):
        assert seen.add(digest64(text), number) == known.get(text)
        known.setdefault(text, number)
    assert len(seen) == len(known) and all(digest64(t) in seen for t in texts)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=80), room=st.integers(8, 256))
def test_packing_and_histogram_count_every_row(lengths, room):
    table = histogram(np.array(lengths))
    assert sum(bucket["count"] for bucket in table) == len(lengths)
    for bucket in table:
        assert bucket["count"] == sum(bucket["from"] <= n <= bucket["to"] for n in lengths)
    found = packing(np.array(lengths), room)
    assert sum(lengths) / max(room, max(lengths)) <= found["passes"] <= len(lengths)
    assert 0 < found["fill_percent"] <= 100 and 0 < found["padded_fill_percent"] <= 100


_good = st.builds(
    lambda a, b: json.dumps({"prompt": a, "completion": b}).encode(), st.text(max_size=6), st.text(max_size=6)
)
_odd = st.dictionaries(st.sampled_from(["prompt", "completion", "x"]), st.integers() | st.none() | st.lists(st.text()))
_line = (
    _good | st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")) | _odd.map(lambda row: json.dumps(row).encode())
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(_line, max_size=12))
def test_every_line_ends_with_a_verdict_whatever_its_bytes(tmp_path, lines):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"prompt": "first", "completion": "row"}\n' + b"\n".join(lines))
    report = check(profile(file, data__format="prompt_completion"), None).report
    rows = report["rows"]
    assert rows["total"] == 1 + sum(bool(line.strip()) for line in lines)
    assert rows["total"] == rows["used"] + rows["cut"] + rows["dropped"] and rows["used"] >= 1
    assert sum(report["reasons"].values()) == rows["dropped"] == len(report["dropped_rows"])


def test_rows_from_lists():
    rows = Rows.of([([1, 2, 3], [False, True, True]), ([4], [False])])
    assert len(rows) == 2 and list(rows.lengths) == [3, 1] and list(rows.labelled_counts) == [2, 0]
    assert [list(ids) for ids, _ in rows] == [[1, 2, 3], [4]] and len(Rows.empty()) == 0


def test_order_of_rows_does_not_change_the_verdicts(tmp_path, source):
    rows = [*pairs(6), {"prompt": "x", "completion": None}, {"prompt": 5, "completion": "five"}]
    counts = [
        Counter(check(profile(jsonl(tmp_path / "a.jsonl", order)), source).report["rows"])
        for order in (rows, rows[::-1])
    ]
    assert counts[0] == counts[1] == {"total": 8, "used": 7, "cut": 0, "dropped": 1}
