"""The app by its keys, over recorded job folders (Pilot, no terminal)."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from bc250studio import paths, pipeline
from bc250studio.jobs import JobFolder
from bc250studio.ui.widgets.chart import Chart
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows
from bc250studio.ui.widgets.topline import TopLine
from tests import recording
from tests.ui_help import app, on, said, screen_name, text, until


async def test_a_run_opens_with_its_figures_and_says_it_is_a_recording(home):
    recording.write_run("demo", step=72)
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.screen.query_one("#runs", Rows)._rows)
        await pilot.press("2")
        await until(pilot, lambda: "1.412" in text(pilot, "#loss-text"))
        assert "250 real" in text(pilot, "#rate-text") and "264 positions" in text(pilot, "#rate-text")
        assert "GPU 70 °C" in text(pilot, "#temp-text")
        assert "127 W" in text(pilot, "#figures") and "1.92 GiB" in text(pilot, "#figures")
        assert "Checkpoint at step 50 saved" in text(pilot, "#events")
        assert "RECORDING" in pilot.app.screen.query_one(TopLine).label
        chart = pilot.app.screen.query_one("#loss", Chart)
        assert any("⠀" < mark <= "⣿" for row in chart._cells for mark, _ in row)
        assert any(mark == "●" for row in chart._cells for mark, _ in row)


async def test_without_a_sensor_the_pane_says_why(home):
    job = recording.write_run("demo", step=20, board=False)
    from bc250studio import telemetry

    telemetry.Writer(job.path / "board.jsonl").write(
        {"readings": {"gpu_temp_c": recording.NO_GPU, "cpu_temp_c": {**recording.NO_GPU, "why": "no hwmon"}}}
    )
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "n/a" in text(pilot, "#temp-text"))
        assert "no GPU sensor on this machine" in pilot.app.screen.query_one("#temp", Chart).empty
        assert "n/a" in text(pilot, "#figures")


async def test_pause_checkpoint_stop_reach_the_run(home):
    job = recording.write_run("demo", step=20)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 20/150" in text(pilot, "#progress"))
        await pilot.press("p", "k", "s")
        await until(pilot, on(pilot, "Confirm"))
        await pilot.press("n")
        await until(pilot, on(pilot, "TrainingScreen"))
        await pilot.press("s")
        await until(pilot, on(pilot, "Confirm"))
        await pilot.press("y")
        await until(pilot, lambda: len(list((job.path / "control").glob("*.json"))) == 3)
        verbs = {file.stem.rpartition("-")[2] for file in (job.path / "control").glob("*.json")}
        assert verbs == {"pause", "checkpoint", "stop"}


async def test_a_greyed_key_says_why(home):
    job = recording.write_run("demo", step=150, phase="done", stages=recording.done_stages())
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "done" in text(pilot, "#progress"))
        await pilot.press("p")
        await until(pilot, lambda: "not live" in said(pilot))
        await pilot.press("c")
        await until(pilot, lambda: "Nothing is served yet" in said(pilot))
        await pilot.press("question_mark")
        await until(pilot, on(pilot, "HelpScreen"))
        assert any("not live" in str(line._shown) for line in pilot.app.screen.query(Line))
        await pilot.press("q")
        await until(pilot, on(pilot, "TrainingScreen"))


async def test_read_only_changes_nothing(home):
    job = recording.write_run("demo", step=20)
    async with app(job=job, read_only=True).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 20/150" in text(pilot, "#progress"))
        await pilot.press("p", "s", "g")
        await until(pilot, lambda: "--readonly" in said(pilot))
        assert screen_name(pilot) == "TrainingScreen" and not list((job.path / "control").iterdir())
        assert "READ-ONLY" in pilot.app.screen.query_one(TopLine).label


async def test_q_leaves_and_says_that_the_run_goes_on(home, monkeypatch):
    left = []
    job = recording.write_run("demo", step=20)
    studio = app(job=job)
    async with studio.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: studio.snapshot.live)
        monkeypatch.setattr(studio, "exit", lambda **given: left.append(given["message"]))
        await pilot.press("q")
        await until(pilot, lambda: left)
    assert f"{job.name} goes on" in left[0] and "bc250studio attach" in left[0]


async def test_steps_show_results_and_begin_what_is_missing(home, monkeypatch):
    asked = []
    monkeypatch.setattr(pipeline, "go_on", lambda job, stages=(): asked.append((job.name, tuple(stages))))
    stages = {"train": recording.done_stages()["train"]}
    job = recording.write_run("demo", step=150, phase="done", stages=stages)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "done" in text(pilot, "#progress"))
        await pilot.press("e")
        await until(pilot, lambda: asked)
        assert asked == [(job.name, pipeline.STAGES[1:])]
        table = pilot.app.screen.query_one("#stages", Rows)
        assert str(table._rows["train"][1]) == "✓ done" and str(table._rows["export"][1]) == "· waiting"
        job.write_stage("export", **recording.done_stages()["export"])
        job.write_state(phase="serving", stage="serve", stage_text="loading the weights")
        await until(pilot, lambda: str(table._rows["serve"][1]) == "▶ running")
        assert "9.3 MiB" in table._rows["export"][3] and "loading the weights" in text(pilot, "#now")
        for name in ("reference", "serve", "prove", "ask"):
            job.write_stage(name, **recording.done_stages()[name])
        job.write_state(phase="done", stage=None)
        await until(pilot, lambda: "served = trained" in text(pilot, "#proof"))
        assert "0.00210 nats" in text(pilot, "#proof") and "0.0410 nats" in text(pilot, "#proof")
        assert "24 compute units" in text(pilot, "#answers")


async def test_a_failed_proof_is_loud(home):
    stages = recording.done_stages()
    stages["prove"] = {**stages["prove"], "verdict": "failed"}
    stages["prove"]["proof"] = {**stages["prove"]["proof"], "mean_kl": 0.0357, "cause": "the adapter is scaled by 0.8"}
    job = recording.write_run("demo", step=150, phase="failed", stages=stages, error="proof failed")
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "failed" in text(pilot, "#progress"))
        await pilot.press("i")
        await until(pilot, on(pilot, "DetailsScreen"))
        await pilot.press("e")
        await until(pilot, lambda: "SERVED IS NOT WHAT WAS TRAINED" in text(pilot, "#proof"))
        assert "scaled by 0.8" in text(pilot, "#proof")
        await pilot.press("1")
        await until(pilot, lambda: "✗ proof failed (rec)" in str(pilot.app.screen.query_one("#runs", Rows)._rows))


async def test_zoom_scrubs_scales_and_overlays(home):
    recording.write_run("demo", step=150, phase="done", age_s=9000)
    job = recording.write_run("demo", step=72)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in text(pilot, "#progress"))
        await pilot.press("z")
        await until(pilot, lambda: pilot.app.screen.query_one("#chart", Chart).frame)
        await pilot.press("left", "left")
        await until(pilot, lambda: "loss" in text(pilot, "#reading") and "step" in text(pilot, "#reading"))
        before = pilot.app.screen.query_one("#chart", Chart).frame
        await pilot.press("plus")
        after = pilot.app.screen.query_one("#chart", Chart).frame
        assert after.x1 - after.x0 == pytest.approx((before.x1 - before.x0) / 2)
        await pilot.press("o")
        await until(pilot, lambda: "earlier run" in text(pilot, "#reading"))
        await pilot.press("z")
        await until(pilot, lambda: "tokens/s" in text(pilot, "#title"))


async def test_system_and_log_and_kernels_open(home, monkeypatch):
    from bc250studio.ui.screens import kernels, system

    async def twin(*arguments, timeout_s=0.0):
        return {"chip": "x", "checks": [{"name": "disk", "group": "Disk", "verdict": "pass", "why": "120 GiB free"}]}

    monkeypatch.setattr(system, "twin", twin)
    monkeypatch.setattr(kernels, "twin", twin)
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, on(pilot, "HomeScreen"))
        await pilot.press("5")
        await until(pilot, lambda: "mem_available_mib" in text(pilot, "#text"), "sensors of this machine")
        await pilot.press("d")
        await until(pilot, lambda: "120 GiB free" in text(pilot, "#text"))
        await pilot.press("4")
        await until(pilot, on(pilot, "KernelsScreen"))
        await pilot.press("6")
        await until(pilot, on(pilot, "LogScreen"))


@pytest.mark.parametrize("size", [(59, 24), (80, 12), (20, 3)])
async def test_a_tiny_terminal_still_lives(home, size):
    recording.write_run("demo", step=72)
    async with app().run_test(size=size) as pilot:
        await until(pilot, lambda: "72/150" in text(pilot, "#tiny"))
        assert pilot.app.screen.query_one("#tiny").display
        assert not pilot.app.screen.query_one(".body").display


@pytest.mark.parametrize(("width", "shown"), [(100, False), (140, True)])
async def test_wide_terminals_show_more(home, width, shown):
    job = recording.write_run("demo", step=72)
    async with app(job=job).run_test(size=(width, 40)) as pilot:
        await until(pilot, lambda: "72/150" in text(pilot, "#progress"))
        assert pilot.app.screen.query_one("#grad").region.width > 0 if shown else True
        assert bool(pilot.app.screen.query_one("#grad").region.width) is shown


async def test_resize_storm(home):
    job = recording.write_run("demo", step=72)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "72/150" in text(pilot, "#progress"))
        for width, height in [(120, 40), (40, 10), (200, 60), (1, 1), (80, 24)] * 4:
            await pilot.resize_terminal(width, height)
        await until(pilot, lambda: "250 real" in text(pilot, "#rate-text"))
        assert pilot.app.screen.query_one("#loss", Chart).size.width > 20


async def test_bad_settings_and_theme_fall_back_with_a_sentence(home):
    paths.private_dir(paths.config_dir())
    paths.settings_file().write_text('[ui]\nthema = "x"\n')
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "Did you mean" in said(pilot))
    paths.settings_file().write_text('[ui]\ntheme = "no-such"\n[ui.keymap]\n"home.new" = "a"\n"home.nw" = "b"\n')
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "no theme 'no-such'" in said(pilot))
        assert "no key called 'home.nw'. Did you mean 'home.new'?" in said(pilot)
        await pilot.press("a")
        await until(pilot, on(pilot, "ModelScreen"), "the user's own key works")


async def test_the_end_of_a_run_calls(home):
    job = recording.write_run("demo", step=72)
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.live)
        job.write_state(phase="done", owner=None, stage=None)
        await until(pilot, lambda: f"{job.name}: ✓ done" in said(pilot))


async def test_leaving_never_waits_for_background_work(home):
    from bc250studio.ui.background import in_thread

    release = threading.Event()
    loop_time = asyncio.get_running_loop().time
    async with app().run_test(size=(80, 24)) as pilot:
        task = asyncio.create_task(in_thread(release.wait, 30))
        await pilot.pause()
        began = loop_time()
    assert loop_time() - began < 3
    release.set()
    task.cancel()


async def test_peek_stops_serves_chats_and_goes_on(home, monkeypatch):
    job = recording.write_run("demo", step=20, stages=None)
    job.write_state(stages=["train", "export"])
    steps = []

    def go_on(job: JobFolder, stages=()) -> None:
        steps.append(tuple(stages))
        if stages == ("export", "serve"):
            (job.path / "server.json").write_text("{}")
            job.write_state(phase="done", owner=None)

    monkeypatch.setattr(pipeline, "go_on", go_on)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 20/150" in text(pilot, "#progress"))
        await pilot.press("v")
        await until(pilot, on(pilot, "Confirm"))
        await pilot.press("y")
        await until(pilot, lambda: [f for f in (job.path / "control").iterdir() if "stop" in f.name])
        job.write_state(phase="stopped", owner=None)
        await until(pilot, on(pilot, "ChatScreen"))
        assert steps == [("export", "serve")] and pilot.app.peeking is not None
        await pilot.press("f3")
        await until(pilot, lambda: len(steps) == 2)
    assert steps[1] == ("train", "export") and not (job.path / "server.json").exists()


async def test_a_run_of_a_newer_version_is_only_looked_at(home):
    job = recording.write_run("demo", step=20)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 20/150" in text(pilot, "#progress"))
        state = {**job.state(), "schema": 99}
        (job.path / "state.json").write_text(json.dumps(state))
        await until(pilot, lambda: pilot.app.screen.run.from_the_future)
        await pilot.press("p")
        await until(pilot, lambda: "newer bc250studio" in said(pilot))
    assert not list((job.path / "control").iterdir())


async def test_a_full_disk_is_a_sentence(home, monkeypatch):
    job = recording.write_run("demo", step=20)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bc250studio.jobs.control.ask", full)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 20/150" in text(pilot, "#progress"))
        await pilot.press("p")
        await until(pilot, lambda: "No space left" in said(pilot))
        assert screen_name(pilot) == "TrainingScreen"


async def test_a_merged_file_is_offered(home, monkeypatch):
    from bc250studio.ui.screens import steps

    asked = []

    async def twin(*words, timeout_s=0.0):
        asked.append(words)
        return {"path": "/x/merged.gguf", "size_bytes": 2**30}

    monkeypatch.setattr(steps, "twin", twin)
    job = recording.write_run("demo", step=150, phase="done", owner=None, stages=recording.done_stages())
    async with app(job=job, read_only=False).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "done" in text(pilot, "#progress"))
        await pilot.press("i", "e")
        await until(pilot, lambda: "served = trained" in text(pilot, "#proof"))
        await pilot.press("m")
        await until(pilot, on(pilot, "AskText"))
        await pilot.press(*"q8_0", "enter")
        await until(pilot, lambda: "1.0 GiB" in said(pilot))
    assert asked[0][:4] == ("export", str(job.path), "--kind", "merged") and asked[0][-1] == "q8_0"
