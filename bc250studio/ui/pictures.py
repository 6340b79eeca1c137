"""Pictures of every screen for the documentation, drawn from a recorded run and labelled as recordings.

``python -m bc250studio.ui.pictures record RUN FOLDER --label "..."`` keeps the small files of a run (no weights);
``python -m bc250studio.ui.pictures draw FOLDER OUT`` writes an SVG a screen. Nothing is invented: a picture of
training is the recording cut at a step, with its clock moved to now.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.jobs import JobFolder, mine
from bc250studio.jobs.folder import read_json
from bc250studio.ui.follow import BOARD_CURVES

KEPT = ("profile.toml", "state.json", "metrics.jsonl", "board.jsonl", "events.jsonl")
CUT_AT = 0.62
BOARD_KEPT = 120
STATE_FROM_METRICS = ("loss", "loss_ema", "real_tokens_per_s")


def record(run: JobFolder, folder: Path, label: str) -> None:
    """Keep what the app shows of a run: no weights, no path of this machine, every n-th board reading."""
    (folder / "stages").mkdir(parents=True, exist_ok=True)
    elsewhere = {
        str(run.path): "~/.local/share/bc250studio/runs/demo",
        sys.prefix: ".venv",
        str(Path(__file__).parents[2]): "bc250studio",
        str(Path.home()): "~",
    }
    for name in (*KEPT, *(f"stages/{file.name}" for file in (run.path / "stages").glob("*.json"))):
        source = run.path / name
        if source.exists():
            text = source.read_text("utf-8")
            for here, there in elsewhere.items():
                text = text.replace(here, there)
            (folder / name).write_text(text, "utf-8")
    board = _lines(folder / "board.jsonl")
    kept = board[:: max(1, len(board) // BOARD_KEPT)]
    for line in kept:
        line["readings"] = {name: line["readings"][name] for name in BOARD_CURVES if name in line["readings"]}
    (folder / "board.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
    state = read_json(folder / "state.json")
    (folder / "state.json").write_text(json.dumps({**state, "recording": label, "owner": None}, indent=1), "utf-8")


def play(recording: Path, name: str, share: float = 1.0, age_s: float = 0.0) -> JobFolder:
    """A job folder that shows the recording up to ``share`` of its steps; below 1 it looks live, owned by us."""
    job = JobFolder(paths.private_dir(paths.runs_dir() / name))
    for part in ("stages", "control", "checkpoints", "export", "logs"):
        paths.private_dir(job.path / part)
    state = read_json(recording / "state.json")
    metrics = _lines(recording / "metrics.jsonl")
    last = metrics[max(0, int(len(metrics) * share) - 1)] if metrics else {"t": time.time()}
    end = max(line["t"] for line in [last, *_lines(recording / "events.jsonl")]) if share >= 1 else last["t"]
    shift = time.time() - age_s - end
    for file in ("metrics.jsonl", "board.jsonl", "events.jsonl"):
        kept = [{**line, "t": line["t"] + shift} for line in _lines(recording / file) if line["t"] <= end]
        (job.path / file).write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
    shutil.copy(recording / "profile.toml", job.path / "profile.toml")
    state["created"] = float(state.get("created") or end) + shift
    if isinstance(state.get("finished"), (int, float)):
        state["finished"] += shift
    if share >= 1:
        for record_file in (recording / "stages").glob("*.json"):
            shutil.copy(record_file, job.path / "stages" / record_file.name)
    else:
        steps = int(state.get("steps") or len(metrics))
        state |= {key: last.get(key) for key in STATE_FROM_METRICS}
        state |= {"step": last["step"], "eta_s": (steps - last["step"]) * (last.get("step_s") or 0)}
        if isinstance(state.get("epoch"), (int, float)):
            state["epoch"] = round(state["epoch"] * last["step"] / steps, 3)
        losses = [line["loss"] for line in _lines(job.path / "events.jsonl") if line.get("event") == "evaluation"]
        state |= {"eval_loss": losses[-1] if losses else None, "best_eval_loss": min(losses, default=None)}
        state |= {"phase": "training", "stage": "train", "owner": mine().as_dict(), "error": None}
    job.write_state(**state)
    return job


def _lines(file: Path) -> list[dict[str, Any]]:
    from bc250studio.telemetry import read_all

    return [line for line in read_all(file) if isinstance(line.get("t"), (int, float))]


async def draw(recording: Path, out: Path, only: Sequence[str] = (), size: tuple[int, int] = (80, 24)) -> list[Path]:
    """One SVG a screen, or only of those named."""
    from bc250studio.ui.app import StudioApp
    from bc250studio.ui.draft import Draft

    done = play(recording, "demo-yesterday", age_s=52_000)
    live = play(recording, "demo-tonight", share=CUT_AT)
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, job, keys in _scenes(live, done):
        if only and name not in only:
            continue
        Draft.forget()  # a picture begins with nothing left unfinished by the last one
        shutil.rmtree(live.path)
        play(recording, live.name, share=CUT_AT)  # its news shall not be older than the picture
        app = StudioApp(interval_s=0.1, job=job)
        async with app.run_test(size=size) as pilot:
            await _settle(pilot, app)
            for key in keys:
                if isinstance(key, str):
                    await pilot.press(key)
                else:
                    await key(pilot)
                await _settle(pilot, app)
            file = out / f"{name}.svg"
            file.write_text(_anywhere(app.export_screenshot(title="bc250studio", simplify=True)), "utf-8")
            written.append(file)
    return written


def _anywhere(picture: str) -> str:
    """Paths of the machine that draws begin with ``~``, filled up so that each text keeps its measured width."""
    for root in (str(paths.state_dir().parent), str(Path(__file__).parents[2])):
        gap = "&#160;" * (len(root) - 1)
        picture = re.sub(f"{re.escape(root)}([^<]*)<", rf"~\1{gap}<", picture)
    return picture


Scene = tuple[str, JobFolder | None, Sequence[str | Callable[[Any], Awaitable[None]]]]


def _scenes(live: JobFolder, done: JobFolder) -> list[Scene]:
    model = (_said("#about", "parameters"),)
    return [
        ("home", None, ()),
        ("model", None, ("n", *model)),
        ("dataset", None, ("n", *model, "f4", "f5", _said("#said-check", "tokens"))),
        ("preview", None, ("n", *model, "f4", "f8", _said("#preview-text", "⟦"))),
        ("recipe", None, ("m",)),
        ("review", None, ("r", _said("#found", "time"))),
        ("training", live, ()),
        ("answers", done, ("a",)),
        ("chart", live, ("z", *["left"] * 12)),
        ("steps", done, ("i", "e")),
        ("chat", done, (_recorded_chat,)),
        ("details", done, ("i",)),
        ("runs", None, ("slash",)),
        ("compare", None, ("slash", "space", "down", "space", "x")),
        ("system", None, ("5", "d", _said("#text", "pass"))),
        ("kernels", None, ("4", _said("#text", "use"))),
        ("shapes", None, ("4", _said("#text", "use"), "tab", _said("#text", "TFLOP"))),
        ("log", None, ("6",)),
        ("help", live, ("question_mark",)),
    ]  # fmt: skip


def _said(selector: str, word: str) -> Callable[[Any], Awaitable[None]]:
    async def wait(pilot: Any) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            await pilot.pause(0.1)
            line = pilot.app.screen.query(selector)
            if line and word in str(line.first()._shown):
                return
        raise TimeoutError(f"{selector} never said {word!r}")

    return wait


async def _settle(pilot: Any, app: Any) -> None:
    for _ in range(4):
        app.watcher.hurry()
        await pilot.pause(0.15)


async def _recorded_chat(pilot: Any) -> None:
    """The answers of the ask stage, as the chat shows them."""
    from bc250studio.serve.chat import Chat
    from bc250studio.serve.talk import Answer, Talk

    screen = pilot.app._screen("chat", pilot.app.first_job)
    await pilot.app.push_screen(screen)
    await pilot.pause(0.5)
    chat = Chat(Talk("http://127.0.0.1:9", "none"), Path(tempfile.gettempdir()))
    asked = screen.job.stage("ask").get("answers") or []
    for answer in asked[:1] + asked[1:][-1:]:
        for side in ("base", "tuned"):
            said = answer[side]
            chat.histories[side] += [
                {"role": "user", "content": answer["prompt"]},
                {"role": "assistant", "content": said["text"]},
            ]
            screen.chat.answers[side] = Answer(
                text=said["text"],
                tokens=int(said.get("tokens") or 0),
                tokens_per_s=float(said.get("tokens_per_s") or 0),
                stop=str(said.get("stop") or "end"),
            )
    screen.chat.chat = chat
    screen.chat.words = "recorded answers"
    screen._draw()


def main(arguments: Sequence[str] | None = None) -> int:
    """The two commands."""
    parser = argparse.ArgumentParser(prog="python -m bc250studio.ui.pictures", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    keep = verbs.add_parser("record", help="keep the small files of a run")
    keep.add_argument("run")
    keep.add_argument("folder", type=Path)
    keep.add_argument("--label", required=True, help="machine and date of the run")
    paint = verbs.add_parser("draw", help="an SVG a screen")
    paint.add_argument("folder", type=Path)
    paint.add_argument("out", type=Path)
    paint.add_argument("--only", nargs="*", default=[], help="names of screens")
    options = parser.parse_args(arguments)
    if options.verb == "record":
        from bc250studio import jobs

        record(jobs.find(options.run), options.folder, options.label)
        return 0
    with tempfile.TemporaryDirectory() as home:
        os.environ["BC250STUDIO_HOME"] = home
        for file in asyncio.run(draw(options.folder.resolve(), options.out, options.only)):
            print(file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
