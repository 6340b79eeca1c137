"""A row that must be named is found again in its file, whatever was dropped or kept away from training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bc250studio import data, profiles
from bc250studio.data import where
from bc250studio.models import find
from bc250studio.models.tokenizer import load_tokenizer
from tests import survival


@pytest.mark.parametrize("held", [False, True])
def test_every_training_row_is_found_on_its_line(tmp_path: Path, held: bool) -> None:
    model = survival.byte_model(tmp_path / "model")
    lines = [json.dumps({"prompt": f"question {n}", "completion": f"answer {n}"}) for n in range(40)]
    lines[5], lines[9] = "no json", lines[8]  # unreadable, and the same row again
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "held.jsonl").write_text("\n".join(lines[:4]))
    settings = {"model.base": str(model), "data.path": str(tmp_path / "rows.jsonl"), "data.eval_fraction": 0.25}
    if held:
        settings["data.eval_path"] = str(tmp_path / "held.jsonl")
    profile = profiles.from_text("", "test", "x", settings).profile
    source = find.find(str(model))
    rows, tokenizer = data.prepare(profile, source).train, load_tokenizer(source)
    places = where.places(profile, source)
    assert len(places) == len(rows)
    assert held or len(rows) < 38
    for row, place in enumerate(places):
        question = json.loads(lines[int(place.removeprefix("line ")) - 1])["prompt"]
        assert question in tokenizer.decode(rows.row(row)[0].tolist())
