"""The kernels screen over files that the kernel code itself wrote: shapes, plan, live table, proofs, what is mapped."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from bc250studio import paths, settings
from bc250studio.jobs import JobFolder, Lock
from bc250studio.kernels import chip, plan, store, switch, tune
from bc250studio.ui import tuning
from bc250studio.ui.screens import kernels
from tests import recording
from tests.flows.test_kernels_tuning import misbehave, shape_list, tools
from tests.ui_help import app, on, page, said, text, until

__all__ = ["tools"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The twin answers with what the commands' own code makes of a small model; what it was asked is kept."""
    words: list[tuple[str, ...]] = []
    board = chip.bc250()

    async def twin(*given: str, timeout_s: float = 0.0) -> Any:
        words.append(given)
        if given[1] == "status":
            return json.loads(json.dumps(switch.status(), default=str))
        record = shape_list().as_dict(board)
        if given[1] == "shapes":
            Path(given[-1]).write_text(json.dumps(record))
            return record
        if given[1] == "plan":
            assert json.loads(Path(given[-1]).read_text()) == record, "the plan is made of the shapes just shown"
            return plan.plan(shape_list(), board, 8).as_dict()
        return {"job": "x"}

    monkeypatch.setattr(kernels, "twin", twin)
    return words


async def opened(pilot: Pilot) -> None:
    await until(pilot, on(pilot, "HomeScreen"))
    await until(pilot, lambda: pilot.app.snapshot.t)
    await pilot.press("4")
    await until(pilot, on(pilot, "KernelsScreen"))


async def test_shapes_and_plan_of_a_profile(home, asked):
    async with app().run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await until(pilot, lambda: "in use" in page(pilot))
        await pilot.press("tab")
        await until(pilot, lambda: "kinds of product" in page(pilot))
        dearest = max(shape_list().as_dict(chip.bc250())["shapes"], key=lambda s: s["share"])
        assert f"{100 * dearest['share']:.1f}%" in page(pilot) and dearest["role"][:12] in page(pilot)
        assert f"{dearest['m']}x{dearest['n']}x{dearest['k']}" in page(pilot)
        assert "◂ demo ▸" in page(pilot)
        await pilot.press("tab")
        await until(pilot, lambda: "fp16-tn" in page(pilot) and "about" in page(pilot))
        before = len(asked)
        await pilot.press("right")
        await until(pilot, lambda: "◂ demo ▸" not in page(pilot))
        await until(pilot, lambda: len(asked) == before + 2)
        assert [words[1] for words in asked[-2:]] == ["shapes", "plan"], "the next profile's products come first"


async def test_what_the_twin_cannot_do_is_its_sentence(home, monkeypatch):
    from bc250studio.errors import BadInput

    async def twin(*given: str, timeout_s: float = 0.0) -> Any:
        raise BadInput("The profile x does not pack its rows, so its sizes never stand still.")

    monkeypatch.setattr(kernels, "twin", twin)
    async with app().run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("tab")
        await until(pilot, lambda: "does not pack its rows" in page(pilot))


async def test_a_tuning_job_is_followed_while_it_runs(home, asked, tools, monkeypatch):
    """The real tuning code over a stand-in Tensile that hangs in one part, in a thread of this process."""
    misbehave(monkeypatch, fp16_tn="hang")
    job = tune.create(shape_list(layouts=("TN", "NN")), chip.bc250(), most=4, widen=False, quiet_s=5)
    go_on = threading.Event()
    begin = tune.Tuning.tune_part

    def held(self: tune.Tuning, part: Any, *rest: Any) -> dict[str, Any]:
        record = begin(self, part, *rest)
        assert go_on.wait(60) or part.name != "fp16-nn"
        return record

    monkeypatch.setattr(tune.Tuning, "tune_part", held)

    def work() -> None:
        with Lock(job.path):
            job.own("preparing")
            tune.Tuning(job).run()
            job.write_state(phase="done")

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    async with app().run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.live)
        await opened(pilot)
        await until(pilot, lambda: "tuning fp16-nn (1 of 2)" in page(pilot), "the page of a live job comes first")
        shown = ("now  fp16-nn", "GFLOPS", "▶ running", "· waiting")
        await until(pilot, lambda: all(words in page(pilot) for words in shown))
        await pilot.press("t")
        await until(pilot, lambda: "runs already" in said(pilot))
        go_on.set()
        await until(pilot, lambda: "✓ done" in page(pilot) and "✗ hung" in page(pilot))
        await until(pilot, lambda: "without output; the part is left to stock kernels" in text(pilot, "#text"))
        best = tuning.read(job).rows
        assert best
        await until(pilot, lambda: all(f"{row.gflops:,.0f}" in text(pilot, "#text") for row in best))
        worker.join(60)
        await until(pilot, lambda: not pilot.app.snapshot.live)
        await until(pilot, lambda: "bc250studio kernels install" in text(pilot, "#text"))
        await pilot.press("s")
        await until(pilot, lambda: "No tuning job runs" in said(pilot))


async def test_tuning_starts_and_stops_by_keys(home, asked, tools):
    async with app(machine=settings.load()).run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("t")
        await until(pilot, on(pilot, "Confirm"))
        await pilot.press("y")
        await until(pilot, lambda: asked[-1] == ("kernels", "tune", "demo", "--detach"))
        job = recording.write_run("tune", step=0, kind="tune")
        await until(pilot, lambda: pilot.app.snapshot.live)
        await pilot.press("s")
        await until(pilot, on(pilot, "Confirm"))
        await pilot.press("y")
        await until(pilot, lambda: [f for f in (job.path / "control").iterdir() if "stop" in f.name])


async def test_without_a_tensile_the_key_says_how_to_set_one(home, asked):
    async with app().run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("t")
        await until(pilot, lambda: "No Tensile is set" in said(pilot))


async def test_proofs_and_what_a_live_run_has_mapped(home, asked, monkeypatch):
    """A proof as prove.py files it, and this very process as the worker of a live run."""
    from bc250studio.jobs import mine

    store.write_proof(
        "0" * 24,
        {
            "verdict": "failed", "library": "night", "chip": "gfx1013", "chip_name": "BC-250", "torch": "2.11",
            "products": {"cases": 40}, "faults": ["fp16 TN 640x33x17: off by 0.2"],
            "loss_runs": {"fp16": {"difference": 0.25, "passed": False}},
        },
    )  # fmt: skip
    monkeypatch.setattr(
        switch,
        "kernel_tables",
        lambda pid: {
            "pid": pid, "variable": "/x/night/library", "rocblas": ["/opt/rocm/lib/librocblas.so.4"], "tuned": True,
            "kernel_files": ["/x/night/library/Kernels.so-000-gfx1013.hsaco"],
        },
    )  # fmt: skip
    job = recording.write_run("demo", step=9, worker=mine().as_dict())
    async with app().run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await until(pilot, lambda: "failed on BC-250, torch 2.11, 40 products twice, just now" in text(pilot, "#text"))
        shown = text(pilot, "#text")
        assert "off by 0.2" in shown and "losses stock against tuned in fp16: 0.250" in shown
        assert job.name in shown and "a tuned library" in shown and "librocblas.so.4" in shown
        assert "Kernels.so-000-gfx1013.hsaco" in shown


def test_torn_and_foreign_tuning_files_read_as_nothing(home):
    job = JobFolder.create("tune", None, "tune x")
    folder = paths.private_dir(job.path / "tune")
    (folder / "live.json").write_text(
        '{"best": {"a": [{"size": "x"}, 7], "b": 3}, "last": [1], "rejected": {"a": "?"}}'
    )
    (folder / "a.json").write_text('{"verdict": "done", "why"')
    found = tuning.read(job)
    assert found.rows == () and found.parts == () and found.last == {}
    began = time.time()
    assert kernels._when({"t": began}) == began and kernels._when({"t": "x"}) == 0.0
