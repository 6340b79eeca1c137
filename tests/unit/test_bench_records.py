"""Records of benches: written privately, found by a piece of their name, compared key by key."""

from __future__ import annotations

import json
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bc250studio.bench import records
from bc250studio.cli.main import main
from bc250studio.errors import BadInput

RECORD = {
    "regime": {"device": "CPU", "tokens": "1024"},
    "results": {"ratio": 2.0, "sides": [{"name": "ours", "rate": 250.0}]},
}


def test_a_record_comes_back_and_is_the_owners_alone() -> None:
    path = records.write("train", "demo:smollm2-135m-reference", RECORD)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = records.read(path.stem)
    assert again["results"] == RECORD["results"]
    assert again["machine"]["bc250studio"]
    second = records.write("train", "demo:smollm2-135m-reference", RECORD)
    assert second != path and records.names() == sorted([path.stem, second.stem])


def test_compare_shows_common_numbers_and_what_differs() -> None:
    a = records.read(str(records.write("train", "a", RECORD)))
    other = {
        "regime": {"device": "CPU", "tokens": "2048"},
        "results": {"ratio": 3.0, "sides": [{"name": "ours", "rate": 375.0}]},
    }
    b = records.read(str(records.write("train", "b", other)))
    result = records.compare(a, b)
    assert result["regime_differs"] == {"tokens": {"a": "1024", "b": "2048"}}
    assert {row["what"]: row["b_over_a"] for row in result["rows"]} == {"ratio": 1.5, "sides.ours.rate": 1.5}
    with pytest.raises(BadInput, match="compare two of one kind"):
        records.compare(a, {**b, "kind": "gemm"})


def test_unknown_and_ambiguous_names_are_said() -> None:
    records.write("train", "one", RECORD)
    records.write("train", "two", RECORD)
    with pytest.raises(BadInput, match="no bench record 'nothing'"):
        records.read("nothing")
    with pytest.raises(BadInput, match="fits 2 bench records"):
        records.read("20")


@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda s: st.lists(s, max_size=3)).map(
            lambda v: json.dumps(v).encode()
        ),
    )
)
def test_a_file_that_is_no_record_is_bad_input(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("r") / "x.json"
    path.write_bytes(content)
    with pytest.raises(BadInput):
        records.read(str(path))


def test_the_command_lists_and_compares(capsys: pytest.CaptureFixture[str]) -> None:
    first = records.write("train", "a", {**RECORD, "summary": "2.00 × reference"})
    second = records.write("train", "b", RECORD)
    (records.folder() / "broken.json").write_text("{")
    assert main(["bench", "list"]) == 0
    assert "2.00 × reference" in capsys.readouterr().out
    assert main(["bench", "compare", first.stem, second.stem, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["what"] == "ratio"
    assert main(["bench", "compare", first.stem, "nothing"]) == 2
