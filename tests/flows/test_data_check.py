"""`bc250studio data` and `models` as a person types them: tables, JSON, exit codes, memory, and files in the wild."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bc250studio.cli.main import main

MODEL = "demo:smollm2-135m"


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command, in this process."""
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def report(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any], str]:
    code, out, err = run("data", "check", str(path), "--json", *more, capsys=capsys)
    return code, json.loads(out), err


def pairs(path: Path, count: int = 20) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"q {i}", "completion": f"a {i}"}) + "\n" for i in range(count)))
    return path


@pytest.mark.parametrize(
    ("name", "format", "total", "dropped", "code"),
    [
        ("alpaca_en_demo.json", "alpaca", 999, {"duplicate": 14}, 0),
        ("identity.json", "alpaca", 91, {"unfilled placeholder": 85}, 0),
        ("glaive_toolcall_en_demo.json", "sharegpt", 300, {"duplicate": 35, "answer cut away by length": 1}, 0),
        ("dpo_en_demo.json", "preference", 300, {"preference row": 300}, 2),
        ("gsm8k_test.jsonl", "question_answer", 1319, {}, 0),
        ("self_instruct_seed_tasks.jsonl", "alpaca", 175, {"answer cut away by length": 1}, 0),
    ],
)
def test_public_files(shared_data, capsys, name, format, total, dropped, code):
    found, table, err = report(shared_data / name, capsys, "--model", MODEL)
    rows = table["rows"]
    assert found == code and table["format"] == format and table["reasons"] == dropped
    assert rows["total"] == total == rows["used"] + rows["cut"] + rows["dropped"]
    if format == "preference":
        assert "a chosen and a rejected answer" in err and "--use-chosen" in err


def test_preference_rows_are_learnt_when_asked(shared_data, capsys):
    code, table, _ = report(shared_data / "dpo_en_demo.json", capsys, "--use-chosen")
    assert code == 0 and table["rows"]["total"] == 300 and table["rows"]["used"] == 295


def test_placeholders_are_filled_when_told(shared_data, capsys):
    code, table, _ = report(shared_data / "identity.json", capsys, "--fill", "name=Bo", "--fill", "author=Us")
    assert code == 0 and table["rows"] == {"total": 91, "used": 91, "cut": 0, "dropped": 0}


def test_the_table_fits_eighty_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = pairs(tmp_path / "a.jsonl")
    with path.open("a") as stream:
        stream.write(
            '{"prompt": "x"\n' + json.dumps({"prompt": "x {{some_name}}", "completion": "y", "extra": 1}) + "\n"
        )
    code, out, _ = run("data", "check", str(path), "--model", MODEL, capsys=capsys)
    assert code == 0 and max(len(line) for line in out.splitlines() if str(tmp_path) not in line) <= 80
    assert "line 21: broken JSON" in out and "line 22: unfilled placeholder ({{some_name}})" in out
    assert "total    22" in out and "tokens:" in out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("\n\n", "no row that can be read"),
        ("not json\n", "no row that can be read"),
        ('{"weird": 1}\n', "no known format"),
        ('{"prompt": "p", "completion": ""}\n', "Nothing is left to learn"),
        ('{"prompt": "p", "completion": "c", "messages": [{"role": "user", "content": "x"}]}\n', "--format messages"),
    ],
)
def test_files_with_nothing_to_learn_end_with_two_and_a_sentence(tmp_path, capsys, content, words):
    (tmp_path / "a.jsonl").write_text(content)
    code, _, err = run("data", "check", str(tmp_path / "a.jsonl"), capsys=capsys)
    last = err.strip().splitlines()[-1]
    assert code == 2 and words in last and last.startswith("bc250studio: ") and last.endswith((".", "?"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere.jsonl"], "no such file"),
        ([], "Which file?"),
        (["FILE", "--model", "demo:smollm2-135n"], "Did you mean 'demo:smollm2-135m'"),
        (["FILE", "--columns", "prompt"], "needs the form"),
        (["FILE", "--columns", "prompt=promt,completion=completion"], "Did you mean 'prompt'"),
        (["FILE", "--fill", "name"], "needs the form"),
        (["FILE", "--max-length", "1"], "data.max_length"),
        (["FILE", "--profile", "dema"], "No profile"),
    ],
)
def test_wrong_words(tmp_path, capsys, words, expected):
    path = pairs(tmp_path / "a.jsonl")
    code, out, err = run("data", "check", *[str(path) if w == "FILE" else w for w in words], capsys=capsys)
    assert code == 2 and expected in err and not out


def test_an_unknown_format_lists_the_known_ones(tmp_path, capsys):
    with pytest.raises(SystemExit) as refused:
        main(["data", "check", str(pairs(tmp_path / "a.jsonl")), "--format", "chatml"])
    assert refused.value.code == 2 and "prompt_completion" in capsys.readouterr().err


def test_the_demo_profile_checks_itself(capsys):
    code, out, _ = run("data", "check", "--profile", "demo", "--json", capsys=capsys)
    table = json.loads(out)
    assert code == 0 and table["format"] == "messages" and table["rows"]["total"] >= 150
    assert table["rows"]["used"] == table["rows"]["total"] and table["tokens"]["labelled"] > 1000


def test_preview_shows_the_mask_by_mark_and_jumps(tmp_path, capsys):
    path = pairs(tmp_path / "a.jsonl")
    with path.open("a") as stream:
        stream.write(json.dumps({"prompt": "long", "completion": "word " * 50}) + '\n{"prompt": 1\n')
    code, out, _ = run("data", "preview", str(path), "--model", MODEL, "--row", "3", capsys=capsys)
    assert code == 0 and out.startswith("line 3: used,") and "⟦a 2<|im_end|>⟧" in out and "\x1b" not in out
    assert run("data", "preview", str(path), "--model", MODEL, "--longest", capsys=capsys)[1].startswith("line 21:")
    dropped = run("data", "preview", str(path), "--model", MODEL, "--dropped", capsys=capsys)[1]
    assert dropped.startswith("line 22: dropped, broken JSON")
    code, out, _ = run("data", "preview", str(path), "--model", MODEL, "--count", "2", "--json", capsys=capsys)
    assert [row["where"] for row in json.loads(out)] == ["line 1", "line 2"]
    assert run("data", "preview", str(path), capsys=capsys)[0] == 2
    assert run("data", "preview", str(path), "--model", MODEL, "--row", "999", capsys=capsys)[0] == 2


def test_a_terminal_shows_colour_and_pages_by_letters(tmp_path):
    """A real pseudo-terminal: next, longest, quit."""

    path = pairs(tmp_path / "a.jsonl")
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "bc250studio.cli.main", "data", "preview", str(path), "--model", MODEL]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=subprocess.DEVNULL, close_fds=True)
    os.close(follower)
    os.write(leader, b"n\nl\nd\nq\n")
    seen = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    assert process.wait(60) == 0
    text = seen.decode()
    assert "\x1b[1;32m⟦a 1<|im_end|>⟧\x1b[0m" in text
    assert "first rows 2/20" in text and "longest 1/5" in text and "dropped: none" in text


def test_models_list_and_show(tmp_path, capsys):
    code, out, _ = run("models", "list", "--json", capsys=capsys)
    assert code == 0 and MODEL in [entry["name"] for entry in json.loads(out)]
    code, out, _ = run("models", "show", MODEL, "--json", capsys=capsys)
    facts = json.loads(out)
    assert facts["parameters"] == 134_515_008 and facts["tokenizer"]["template"] == "model"
    code, out, _ = run("models", "show", MODEL, capsys=capsys)
    assert "134,515,008" in out and "apache-2.0" in out
    code, out, _ = run("models", "show", MODEL, "--template", capsys=capsys)
    assert out.startswith("{% for message in messages %}")
    code, _, err = run("models", "show", "nobody/nothing", capsys=capsys)
    assert code == 2 and "models get nobody/nothing" in err
    code, _, err = run("models", "get", "nobody/nothing", capsys=capsys)
    assert code == 2 and "could not be fetched" in err
    assert run("models", "list", str(tmp_path / "none"), capsys=capsys)[0] == 2


MEASURE = """
import sys
from bc250studio.cli.main import main
code = main(["data", "check", sys.argv[1], "--json"])
# Not ru_maxrss: a child inherits it from a parent that was larger.
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.slow
def test_a_million_lines_in_flat_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    with path.open("w") as stream:
        for number in range(1_000_000):
            stream.write(
                f'{{"messages":[{{"role":"user","content":"q {number}"}},{{"role":"assistant","content":"a"}}]}}\n'
            )
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-500:]
    assert json.loads(done.stdout)["rows"] == {"total": 1_000_000, "used": 1_000_000, "cut": 0, "dropped": 0}
    peak_mib = int(done.stderr.strip().splitlines()[-1]) / 1024
    assert peak_mib < 512, f"{peak_mib:.0f} MiB"
