"""Home, the queue, the list of runs, details and comparison, by keys over recorded runs and real files."""

from __future__ import annotations

import json
import time

import pytest
from textual.widgets import Input

from bc250studio import pipeline, profiles, telemetry
from bc250studio.jobs import JobFolder, standing
from bc250studio.pipeline import queue
from bc250studio.ui.widgets.chart import Chart
from bc250studio.ui.widgets.rows import Rows
from tests import recording
from tests.ui_help import app, on, page, rows, said, screen_name, text, until


def ended(title: str, age_s: float, profile: str = "", **state) -> JobFolder:
    """A finished run."""
    finished = time.time() - age_s
    stages = state.pop("stages", recording.done_stages())
    options = {"step": 150, "phase": "done", "owner": None, **state}
    return recording.write_run(title, age_s=age_s, stages=stages, profile=profile, finished=finished, **options)


def seen(home) -> None:
    """Nothing of before is news."""
    from bc250studio.ui import morning

    morning.mark_seen()


# -- home ------------------------------------------------------------------------------------------------------


async def test_home_shows_the_live_run_first_then_profiles_and_runs(home):
    recording.write_run("tonight", step=72)
    old = ended("demo", 9000, profile="demo")
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in text(pilot, "#live"))
        assert "ETA 10 min" in text(pilot, "#live")
        assert [str(cells[1])[:6] for cells in rows(pilot, "#runs").values()] == ["▶ trai", "✓ done"]
        cells = rows(pilot, "#runs")[old.name]
        assert cells[2:] == ("1.402", "1.721", "250", "74 °C", "2 h ago")
        await until(pilot, lambda: "✓ done 1.402, 2 h ago" in rows(pilot, "#profiles")["demo"][3])
        shown = page(pilot)
        assert "final loss" in shown and "74 °C" in shown and "2 h ago" in shown, shown


async def test_the_morning_page_shows_what_ended_in_the_night(home):
    ended("demo", 20_000, profile="demo")
    job = ended("demo", 9000, profile="demo")
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: f"✓ done {job.name}" in text(pilot, "#live"))
        said_there = text(pilot, "#live")
        assert "loss 3.214 → 1.402" in said_there and "peak 74 °C" in said_there and "1 more ended" in said_there
        assert "served = trained" in said_there
        await pilot.press("v")
        await until(pilot, on(pilot, "DetailsScreen"))
        await until(pilot, lambda: "evaluation loss 3.214 before, 1.402 after" in text(pilot, "#text"))
        await pilot.press("escape")
        await until(pilot, lambda: "No live run" in text(pilot, "#live"), "seen once, it is no news")
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: rows(pilot, "#runs"))
        assert "No live run" in text(pilot, "#live")


async def test_a_failure_in_the_night_says_why(home):
    ended("demo", 9000, phase="failed", error="The loss became NaN at step 40.", stages={})
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "✗ failed" in text(pilot, "#live"))
        assert "became NaN at step 40" in text(pilot, "#live")
        await pilot.press("escape")
        await until(pilot, lambda: "No live run" in text(pilot, "#live"))


async def test_one_key_repeats_one_clones_one_exports(home, monkeypatch):
    launched, went_on = [], []
    monkeypatch.setattr(
        pipeline, "launch", lambda resolved, stages=(), *_: launched.append(resolved) or recording.write_run("again")
    )
    monkeypatch.setattr(pipeline, "go_on", lambda job, stages=(): went_on.append((job.name, tuple(stages))))
    seen(home)
    job = ended("demo", 9000, profile="demo", stages={"train": recording.done_stages()["train"]})
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "demo" in rows(pilot, "#profiles") and rows(pilot, "#runs"))
        pilot.app.screen.query_one("#profiles").move_cursor(row=list(rows(pilot, "#profiles")).index("demo"))
        await pilot.press("R")
        await until(pilot, on(pilot, "TrainingScreen"))
        assert launched[0].profile == profiles.load("demo").profile
        await pilot.press("escape")
        await until(pilot, on(pilot, "HomeScreen"))
        await pilot.press("m")
        await until(pilot, on(pilot, "RecipeScreen"))
        await pilot.press("escape")
        await until(pilot, on(pilot, "HomeScreen"))
        table = pilot.app.screen.query_one("#runs", Rows)
        table.focus()
        table.move_cursor(row=list(table._rows).index(job.name))
        await pilot.press("e")
        await until(pilot, lambda: went_on)
        assert went_on == [(job.name, pipeline.STAGES[1:])]


async def test_a_rehearsal_is_not_repeated_by_mistake(home):
    seen(home)
    ended("demo", 900, kind="rehearsal")
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: rows(pilot, "#runs"))
        pilot.app.screen.query_one("#runs").focus()
        await pilot.press("r")
        await until(pilot, lambda: "repeat its profile instead" in said(pilot))
        assert screen_name(pilot) == "HomeScreen"


# -- queue -----------------------------------------------------------------------------------------------------


def names() -> list[str]:
    return [queue.name_of(entry) for entry in queue.waiting()]


async def test_the_queue_is_added_to_reordered_emptied_and_started(home, monkeypatch):
    works = []
    monkeypatch.setattr(queue, "ensure_runner", lambda: works.append(1) or JobFolder.create("queue", None, "queue"))
    for name in ("first", "second"):
        queue.add(profiles.from_text("", "test", name))
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(rows(pilot, "#queue")) == 2 and rows(pilot, "#profiles"))
        assert "stands still, s starts it" in text(pilot, "#queue-head")
        await pilot.press("u")
        await until(pilot, lambda: "Go to the queue with tab first" in said(pilot))
        pilot.app.screen.query_one("#profiles").move_cursor(row=list(rows(pilot, "#profiles")).index("demo"))
        await pilot.press("w")
        await until(pilot, lambda: len(rows(pilot, "#queue")) == 3)
        assert works and names() == ["first", "second", "demo"]
        await pilot.press("shift+tab")
        await until(pilot, lambda: pilot.app.screen.query_one("#queue").has_focus)
        await pilot.press("down", "down", "u")
        await until(pilot, lambda: names() == ["first", "demo", "second"])
        await pilot.press("u")
        await until(pilot, lambda: names() == ["demo", "first", "second"], "the cursor went along")
        await pilot.press("d")
        await until(pilot, lambda: names() == ["first", "demo", "second"])
        await pilot.press("x")
        await until(pilot, lambda: names() == ["first", "second"])
        await pilot.press("s")
        await until(pilot, lambda: len(works) == 2)
        for _ in range(2):
            await pilot.press("x")
            await pilot.pause()
        await until(pilot, lambda: not names() and not pilot.app.screen.query_one("#waiting").display)
        await until(pilot, lambda: pilot.app.screen.query_one("#profiles").has_focus, "the cursor is somewhere")
        await pilot.press("s")
        await until(pilot, lambda: "Nothing waits in the queue" in said(pilot))


def test_entries_keep_their_place_when_names_are_equal(home):
    for name in ("same", "same", "other"):
        queue.add(profiles.from_text("", "test", name))
    last = queue.waiting()[2]
    moved = queue.move(last, -1)
    assert names() == ["same", "other", "same"]
    moved = queue.move(moved, -5)
    assert names() == ["other", "same", "same"]
    assert queue.move(moved, 5) == queue.waiting()[2]
    with pytest.raises(Exception, match="does not wait any more"):
        queue.move(moved, 1)


@pytest.mark.slow
async def test_a_queued_tiny_run_is_really_worked_on(home, tmp_path):
    from tests.survival import byte_model

    values = [{"prompt": f"{n} and {n}", "completion": f" make {2 * n}"} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, values)))
    changes = {
        "model.base": str(byte_model(tmp_path / "model")), "model.device": "cpu",
        "data.path": str(tmp_path / "rows.jsonl"), "train.steps": 2, "train.tokens_per_step": 256,
        "train.tokens_per_pass": 256, "adapter.rank": 4, "data.max_length": 64, "thermal.start_below_c": None,
    }  # fmt: skip
    queue.add(profiles.from_text("", "test", "tiny", changes), ("train",))
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(rows(pilot, "#queue")) == 1)
        await pilot.press("s")
        await until(pilot, lambda: not rows(pilot, "#queue") or not names(), "it is taken", within_s=120)
        await until(
            pilot,
            lambda: any(r.standing.verdict == "done" and r.name.startswith("tiny") for r in pilot.app.snapshot.jobs),
            "it ends",
            within_s=240,
        )
        found = next(r.standing.job for r in pilot.app.snapshot.jobs if r.name.startswith("tiny"))
        await until(pilot, lambda: not queue.runner(), "the queue's own job ends too", within_s=60)
        assert not any(name.startswith("queue-") for name in rows(pilot, "#runs")), "it is no run"
    assert (found.path / "checkpoints" / "final").is_dir() and standing(found).verdict == "done"


# -- runs ------------------------------------------------------------------------------------------------------


async def test_runs_filter_compare_delete(home):
    ended("alpha", 9000)
    other = recording.write_run("beta", step=40, phase="stopped", age_s=3000, owner=None)
    live = recording.write_run("gamma", step=10)
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, on(pilot, "HomeScreen"))
        await pilot.press("slash")
        await until(pilot, lambda: len(rows(pilot, "#runs")) == 3)
        await pilot.press("d")
        await until(pilot, lambda: "The run is live" in said(pilot))
        await pilot.press("x")
        await until(pilot, lambda: "Mark two runs" in said(pilot))
        await pilot.press("down", "space", "down", "space", "x")
        await until(pilot, lambda: "the profiles are equal" in text(pilot, "#table"))
        assert "start temperature" in text(pilot, "#table")
        await pilot.press("escape")
        await until(pilot, on(pilot, "RunsScreen"))
        await pilot.press("slash", *"stopped", "enter")
        await until(pilot, lambda: list(rows(pilot, "#runs")) == [other.name])
        await pilot.press("d")
        await until(pilot, on(pilot, "Confirm"))
        assert "KiB" in page(pilot) and other.name in page(pilot)
        await pilot.press("n")
        await until(pilot, on(pilot, "RunsScreen"))
        assert other.path.exists()
        await pilot.press("d")
        await until(pilot, on(pilot, "Confirm"))
        await pilot.press("y")
        await until(pilot, lambda: not other.path.exists())
        await until(pilot, lambda: "are free again" in said(pilot))
        pilot.app.screen.query_one("#filter", Input).value = ""
        await until(pilot, lambda: len(rows(pilot, "#runs")) == 2)
    assert live.path.exists()


async def test_long_names_give_way_and_the_figures_stay(home):
    ended("a-very-long-name-of-a-fine-tune-over-night", 9000)
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, on(pilot, "HomeScreen"))
        await pilot.press("slash")
        await until(pilot, lambda: rows(pilot, "#runs"))
        await until(pilot, lambda: "2 h ago" in page(pilot) and "74 °C" in page(pilot) and "…" in page(pilot))
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: next(iter(rows(pilot, "#runs"))) in page(pilot))


def a_run(title: str, rank: int, warm_c: float, rate: float) -> JobFolder:
    """A finished run whose board was ``warm_c`` at the start."""
    job = ended(title, 5000, board=False)
    resolved = profiles.from_text("", "test", title, {"adapter.rank": rank})
    (job.path / "profile.toml").write_text(profiles.dump(resolved))
    guard = telemetry.Writer(job.path / "board.jsonl")
    for i in range(60):
        reading = {**recording.readings(i)["gpu_temp_c"], "value": warm_c + i / 4, "trust": "good"}
        guard.write({"t": time.time() - 5000 + i, "readings": {"gpu_temp_c": reading}})
    guard.close()
    train = recording.done_stages()["train"]
    job.write_stage("train", **{**train, "rates": {**train["rates"], "real_tokens_per_s": rate}})
    return job


async def test_a_comparison_names_the_profile_difference_and_the_hot_start(home, monkeypatch):
    cold, hot = a_run("cold", 16, 45.0, 250.0), a_run("hot", 32, 72.0, 231.0)
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(rows(pilot, "#runs")) == 2)
        pilot.app.go("compare", cold, hot)
        await until(pilot, lambda: "adapter.rank" in text(pilot, "#table"))
        table = text(pilot, "#table")
        assert table.index("adapter.rank") < table.index("real tokens/s"), "the difference comes first"
        line = next(line for line in table.splitlines() if line.startswith("adapter.rank"))
        assert line.split() == ["adapter.rank", "16", "32"]
        line = next(line for line in table.splitlines() if line.startswith("start temperature"))
        assert line.split()[2:] == ["45", "°C", "72", "°C"]
        assert "B started 27 °C hotter" in table
        chart = pilot.app.screen.query_one("#chart", Chart)
        await until(pilot, lambda: any("⠀" < mark <= "⣿" for row in chart._cells for mark, _ in row))
        await pilot.press("o")
        other = pilot.app.screen.query_one("#chart-b", Chart)
        await until(pilot, lambda: other.display and other.frame == chart.frame, "side by side on one scale")
        await pilot.press("z", "z")
        await until(pilot, lambda: "temperature" in text(pilot, "#chart-head"))
        await until(pilot, lambda: chart.frame is not None and chart.frame.y1 >= 86)


async def test_details_turn_pages(home):
    seen(home)
    job = ended("demo", 900, profile="demo")
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "done" in text(pilot, "#progress"))
        await pilot.press("i")
        await until(pilot, lambda: "evaluation loss 3.214 before, 1.402 after" in text(pilot, "#text"))
        for words in ("* tokens_per_step", "Checkpoint at step 50", "metrics.jsonl"):
            await pilot.press("tab")
            await until(pilot, lambda words=words: words in text(pilot, "#text"))
        assert "together" in text(pilot, "#text")


async def test_a_foreign_folder_and_a_broken_one_are_harmless(home):
    good = ended("good", 900)
    folder = good.path.parent / "foreign"
    folder.mkdir()
    (folder / "state.json").write_text('{"phase": ["x"], "created": "yesterday", "steps": "many"}')
    (good.path.parent / "torn").mkdir()
    (good.path.parent / "torn" / "state.json").write_text('{"phase": "trai')
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: good.name in rows(pilot, "#runs"))
        await pilot.press("slash")
        await until(pilot, on(pilot, "RunsScreen"))
        await until(pilot, lambda: good.name in rows(pilot, "#runs"))
        names_there = list(rows(pilot, "#runs"))
        if "foreign" in names_there:
            pilot.app.screen.query_one("#runs", Rows).move_cursor(row=names_there.index("foreign"))
            await pilot.press("i")
            await until(pilot, on(pilot, "DetailsScreen"))
            await pilot.press("tab")
            await until(pilot, lambda: "no readable profile" in text(pilot, "#text"))
