"""What the app reads and draws, without a terminal: curves, charts, drafts, the watcher, lean imports."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bc250studio import paths, telemetry
from bc250studio.errors import BadInput
from bc250studio.jobs import JobFolder
from bc250studio.ui.draft import Draft
from bc250studio.ui.follow import Follower, reading_text
from bc250studio.ui.numbers import duration, number
from bc250studio.ui.series import Series, at
from bc250studio.ui.watch import Observed, Snapshot, Watcher
from bc250studio.ui.widgets.braille import Frame, Limit, Trace, draw, points, y_frame
from tests import recording


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=900), st.integers(0, 900))
@settings(max_examples=60, deadline=None)
def test_buckets_are_bounded_and_lose_no_extreme(values, cut):
    series = Series(capacity=64)
    for x, y in enumerate(values[:cut]):
        series.add(x, y)
    series.extend(range(len(values[:cut]), len(values)), values[cut:])
    curve = series.curve()
    assert len(curve) <= 64
    assert sum(bucket.points for bucket in curve) == len(values)
    assert min(b.low for b in curve) == min(values) and max(b.high for b in curve) == max(values)
    assert all(a.x1 <= b.x0 for a, b in itertools.pairwise(curve))
    assert curve[0].x0 == 0 and curve[-1].x1 == len(values) - 1


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "7", True])
def test_what_is_no_number_makes_no_point(value):
    series = Series()
    series.add(1, value)
    series.add(value, 1)
    assert series.curve() == ()


def test_a_clock_that_jumps_back_does_not_fold_the_curve():
    series = Series()
    for x in (1, 2, 3, 1, 4):
        series.add(x, x)
    assert [bucket.x0 for bucket in series.curve()] == [1, 2, 3, 3, 4]
    assert at(series.curve(), 3.9).x0 == 4


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), max_size=50),
    st.integers(1, 90),
    st.integers(1, 30),
    st.booleans(),
)
def test_a_chart_always_fits_its_cells(pairs, width, height, plain):
    trace = Trace(points(sorted(pairs)))
    rows = draw([trace], [Limit(3.0, "pause 3")], Frame(0, 1e6, *y_frame([trace])), width, height, plain)
    assert len(rows) == height and all(len(row) == width for row in rows)
    assert all(len(mark) == 1 for row in rows for mark, _ in row)
    if plain:
        assert all(mark.isascii() for row in rows for mark, _ in row)


def test_a_rising_line_rises():
    rows = draw([Trace(points([(0, 0), (10, 10)]))], (), Frame(0, 10, 0, 10), 10, 5)
    marked = [[i for i, (mark, _) in enumerate(row) if mark != " "] for row in rows]
    assert 9 in marked[0] and 0 in marked[-1] and 9 not in marked[-1]


def test_numbers_read_well():
    assert [number(v) for v in (250, 49152, 0.00021, 1.7212, None, float("nan"))] == [
        "250", "49,152", "2.10e-04", "1.72", "n/a", "n/a",
    ]  # fmt: skip
    assert [duration(s) for s in (8, 130, 1800, 11100, 187200, None)] == [
        "8 s", "2 min 10 s", "30 min", "3 h 05 min", "2 d 4 h", "n/a",
    ]  # fmt: skip


def test_a_missing_sensor_says_why():
    assert reading_text({"gpu_temp_c": recording.NO_GPU}, "gpu_temp_c") == "n/a (no GPU sensor on this machine)"
    assert reading_text({}, "gpu_temp_c") == "n/a (not read)"
    doubtful = {"gpu_temp_c": {"value": 511.0, "unit": "°C", "trust": "implausible", "why": "above 125 °C"}}
    assert reading_text(doubtful, "gpu_temp_c") == "n/a (above 125 °C)"


def test_following_reads_what_was_appended(home):
    job = recording.write_run("demo", step=60)
    follower = Follower(job)
    first = follower.look()
    assert first.latest["step"] == 60 and first.best_eval == 1.721 and first.standing.live
    assert first.recording == recording.LABEL
    writer = telemetry.Writer(job.path / "metrics.jsonl")
    writer.write(recording.step_record(61, time.time()))
    with (job.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 62, "loss"')
    second = follower.look()
    assert second.latest["step"] == 61 and second.curves["loss"][-1].x1 == 61


def test_a_hundred_thousand_steps_are_attached_in_a_second(home):
    job = recording.write_run("long", step=10)
    line = json.dumps(recording.step_record(1, 0.0))
    with (job.path / "metrics.jsonl").open("w") as file:
        file.writelines(line.replace('"step": 1', f'"step": {i}', 1) + "\n" for i in range(1, 100_001))
    view = Follower(job).look()
    assert view.latest["step"] == 100_000 and view.curves["loss"][-1].x1 == 100_000
    assert len(view.curves["loss"]) <= 360
    # in a process of its own, as the app is: the heap of a whole test session makes every allocation dearer
    done = subprocess.run([sys.executable, "-c", ATTACH, str(job.path)], capture_output=True, text=True, check=True)
    seconds, slow = json.loads(done.stdout)
    print(f"{seconds:.2f} s of a core, machine {slow:.2f} times slower than nominal")
    assert seconds / slow < 1.0


ATTACH = """
import json, sys, time
from pathlib import Path
from bc250studio.jobs import JobFolder
from bc250studio.ui.follow import Follower
from tests.speed import slowness
def look():
    began = time.process_time()
    assert Follower(JobFolder(Path(sys.argv[1]))).look().latest["step"] == 100_000
    return time.process_time() - began
before, seconds, after = slowness(), min(look(), look(), look()), slowness()
print(json.dumps([seconds, max(before, after)]))
"""


def test_foreign_and_broken_folders_do_not_end_the_watch(home):
    runs = paths.private_dir(paths.runs_dir())
    (runs / "a-file").write_text("x")
    (runs / "empty").mkdir()
    for name, content in {
        "torn": b'{"phase": "tr',
        "list": b"[1]",
        "deep": b"[" * 100_000,
        "future": b'{"schema": 99, "phase": "dreaming"}',
    }.items():
        (runs / name).mkdir()
        (runs / name / "state.json").write_bytes(content)
    (runs / "pipe").mkdir()
    os.mkfifo(runs / "pipe" / "state.json")
    os.mkfifo(runs / "list" / "metrics.jsonl")
    good = recording.write_run("demo")
    (good.path / "metrics.jsonl").open("ab").write(b"\xff\xfe not json\n[1, 2]\n")
    (good.path / "board.jsonl").open("ab").write(b'{"t": "soon", "readings": [1]}\n')
    watcher = Watcher(lambda message: None)
    watcher.follow(good)
    snapshot = watcher.look()
    assert {row.name for row in snapshot.jobs} == {"torn", "list", "deep", "pipe", "future", good.name}
    assert snapshot.live.name == good.name and snapshot.run.latest["step"] == 60
    for name in ("list", "deep", "pipe"):
        watcher.follow(JobFolder(runs / name))
        assert watcher.look().run.latest == {}
    watcher.follow(JobFolder(runs / "future"))
    assert watcher.look().run.standing.verdict in ("lost", "created")


def test_only_the_newest_snapshot_waits():
    assert Observed(Snapshot()).can_replace(Observed(Snapshot()))


def test_a_draft_keeps_what_fits_and_refuses_the_rest(home):
    draft = Draft.from_profile("demo")
    draft.put_text("adapter.rank", "8")
    draft.put_text("train.steps", "20")
    draft.put_text("train.learning_rate", "2e-4")
    draft.put_text("adapter.targets", '["q_proj", "v_proj"]')
    with pytest.raises(BadInput, match=r"adapter\.rank"):
        draft.put_text("adapter.rank", "many")
    profile = draft.resolved().profile
    assert (profile.adapter.rank, profile.train.steps, profile.train.learning_rate) == (8, 20, 2e-4)
    draft.put_text("train.steps", "")
    assert draft.value("train.steps") is None
    assert draft.not_default()["adapter.rank"] == (8, "this draft")
    file = draft.save("mine")
    assert Draft.from_profile("mine").value("adapter.rank") == 8 and file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadInput, match="exists"):
        draft.save("mine")


def test_the_app_imports_nothing_heavy():
    code = (
        "import sys, pkgutil, importlib, bc250studio.ui as ui\n"
        "for module in pkgutil.walk_packages(ui.__path__, 'bc250studio.ui.'):\n"
        "    importlib.import_module(module.name)\n"
        "heavy = {'torch', 'transformers', 'peft', 'gguf', 'numpy', 'pyarrow', 'requests', 'huggingface_hub'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
