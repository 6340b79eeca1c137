"""What the app bears: clocks that jump, files that are something else, a full disk, a guard's file of days."""

from __future__ import annotations

import itertools
import json
import time

from hypothesis import given
from hypothesis import strategies as st

from bc250studio import telemetry
from bc250studio.ui import lines
from bc250studio.ui.alarms import peak_temperature
from bc250studio.ui.follow import Follower
from bc250studio.ui.lines import Lines
from bc250studio.ui.story import OF_THE_RUN, Story
from tests import recording
from tests.speed import slowness
from tests.ui_help import app, page, said, screen_name, text, until

DAY = 86_400.0


async def test_clocks_that_jump_fold_nothing_and_count_nothing_below_zero(home):
    job = recording.write_run("demo", step=72)
    now = time.time()
    board, events = telemetry.Writer(job.path / "board.jsonl"), telemetry.Writer(job.path / "events.jsonl")
    for t in (now + DAY, now - DAY, now, now - 3600):
        board.write({"t": t, "readings": recording.readings(70)})
    events.write({"t": now, "event": "paused", "reason": "heat", "text": "91 °C", "temp_c": 91.0})
    events.write({"t": now - DAY, "event": "resumed", "reason": "heat"})
    events.write({"t": now + DAY, "event": "paused", "reason": "asked", "text": "Paused."})
    state = {**job.state(), "heartbeat": now + DAY, "eta_s": -5.0}
    (job.path / "state.json").write_text(json.dumps(state))
    view = Follower(job).look()
    assert all(a.x1 <= b.x0 for a, b in itertools.pairwise(view.curves["gpu_temp_c"]))
    assert view.paused_s == 0.0 and view.throttled_s == 0.0 and view.standing.age_s == 0.0
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in page(pilot))
        await until(pilot, lambda: "PAUSED" in page(pilot))
        assert "ETA n/a" in page(pilot) and "1.412" in page(pilot)


async def test_files_that_are_something_else_do_not_stop_the_screen(home):
    job = recording.write_run("demo", step=72)
    (job.path / "metrics.jsonl").unlink()
    (job.path / "metrics.jsonl").mkdir()
    (job.path / "events.jsonl").unlink()
    (job.path / "events.jsonl").symlink_to(job.path / "events.jsonl")
    (job.path / "profile.toml").write_bytes(b"\xff\xfe\x00")
    (job.path / "stages").rmdir()
    (job.path / "stages").write_text("x")
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in page(pilot))
        assert "no step yet" in page(pilot) and "GPU 70 °C" in page(pilot)
        for key in ("z", "escape", "i", "escape", "e", "escape"):
            await pilot.press(key)
            await pilot.pause()
        await until(pilot, lambda: screen_name(pilot) == "TrainingScreen")


async def test_a_file_written_anew_is_read_anew(home):
    job = recording.write_run("demo", step=72)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "1.412" in text(pilot, "#loss-text"))
        line = json.dumps({**recording.step_record(3, 0.0), "loss": 9.5})
        for name in ("metrics", "events"):
            (job.path / f"{name}.jsonl").unlink()
        (job.path / "metrics.jsonl").write_text(line + "\n")
        (job.path / "events.jsonl").write_text('{"t": 1, "event": "note", "text": "begun anew"}\n')
        await until(pilot, lambda: "9.50" in text(pilot, "#loss-text") or "9.5" in text(pilot, "#loss-text"))
        await until(pilot, lambda: text(pilot, "#events").count("\n") == 0 and "begun anew" in text(pilot, "#events"))
        assert len(pilot.app.snapshot.run.curves["loss"]) == 1 and not pilot.app.snapshot.run.evaluations


async def test_a_full_disk_costs_a_note_and_a_setting_but_not_the_app(home, monkeypatch):
    job = recording.write_run("demo", step=72)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in page(pilot))
        monkeypatch.setattr("bc250studio.telemetry.Writer.write", full)
        monkeypatch.setattr("bc250studio.settings.put", full)
        await pilot.press("g", *"x", "enter")
        await until(pilot, lambda: "No space left" in said(pilot))
        await pilot.press("b")
        await until(pilot, lambda: "It is not remembered" in said(pilot))
        assert pilot.app.thin and screen_name(pilot) == "TrainingScreen"


def test_a_guards_file_of_days_is_sampled_and_its_end_is_exact(home, monkeypatch):
    """30 MB, two and a half hours of 13 readings a line, is attached at once; a training must not be starved for it."""
    job = recording.write_run("long", step=10)
    start = time.time() - 9000
    many = {f"sensor_{i}": recording.reading(float(i), "x") for i in range(30)}
    with (job.path / "board.jsonl").open("w") as file:
        for i in range(9000):
            file.write(json.dumps({"t": start + i, "readings": {**recording.readings(i), **many}}) + "\n")
    assert (job.path / "board.jsonl").stat().st_size > 3 * lines.BLOCK
    began = time.process_time()
    follower = Follower(job)
    view = follower.look()
    assert time.process_time() - began < 1.0 * slowness()
    curve = view.curves["gpu_temp_c"]
    assert curve[0].x0 < 60 and curve[-1].x1 >= 8999 - 60
    assert 300 < sum(b.points for b in curve) < 900, "every twelfth line, not all of them"
    assert view.readings["gpu_temp_c"]["value"] == recording.readings(8999)["gpu_temp_c"]["value"]
    assert view.throttled_s is None, "what lies between samples is not claimed"
    telemetry.Writer(job.path / "board.jsonl").write({"readings": recording.readings(5)})
    assert follower.look().readings["gpu_temp_c"]["value"] == recording.readings(5)["gpu_temp_c"]["value"]
    assert peak_temperature(job.path, {"thermal": {"max_temp_c": 83.5}}) == 83.5, "the trainer's own record is exact"
    assert peak_temperature(job.path, {}) > 70


@given(st.lists(st.binary(max_size=60), max_size=40), st.integers(1, 50))
def test_lines_read_in_small_blocks_are_the_lines_of_the_file(tmp_path_factory, parts, block):
    """Whatever the bytes: the records are those of the whole lines, each once."""
    file = tmp_path_factory.mktemp("lines") / "x.jsonl"
    whole = b"\n".join([*(p.replace(b"\n", b"") for p in parts), *(b'{"n": %d}' % i for i in range(9))]) + b"\n"
    file.write_bytes(whole + b'{"n": "torn')
    before, lines.BLOCK = lines.BLOCK, 64 + block
    try:
        found = [r["n"] for r in Lines(file).read() if isinstance(r.get("n"), int)]
    finally:
        lines.BLOCK = before
    assert found[-9:] == list(range(9))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "event": st.sampled_from([*sorted(OF_THE_RUN), "stall", "note", "warning", 7, None]),
                "t": st.one_of(st.floats(allow_nan=True), st.none(), st.text(max_size=3), st.integers(0, 10**10)),
            },
            optional={
                "step": st.one_of(st.integers(-5, 10**6), st.text(max_size=2)),
                "loss": st.one_of(st.floats(), st.none()),
                "answer": st.one_of(st.text(), st.integers()),
                "idle_s": st.one_of(st.floats(allow_nan=True), st.text(max_size=2)),
                "blind": st.one_of(st.booleans(), st.text(max_size=2)),
                "reason": st.one_of(st.text(max_size=5), st.lists(st.integers(), max_size=1)),
                "text": st.one_of(st.text(max_size=20), st.none(), st.integers()),
            },
        ),
        max_size=30,
    )
)
def test_any_events_make_a_story(records):
    story = Story()
    for record in records:
        story.take(record)
    told = story.told()
    assert len(told.events) == len(records) and all(p.end is None or p.end >= p.start for p in told.pauses)
    assert told.pause is None or told.pause.end is None
    assert all("\x1b" not in sample.answer for sample in told.samples)
