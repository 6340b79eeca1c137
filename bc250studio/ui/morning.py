"""The morning page's head: what ended since somebody last looked, in three lines on the home screen."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from textual.content import Content

from bc250studio import paths
from bc250studio.errors import clean
from bc250studio.jobs import FINISHED
from bc250studio.ui.numbers import ago, duration, finite, fixed, number
from bc250studio.ui.stage_words import table
from bc250studio.ui.watch import JobRow
from bc250studio.ui.words import GLYPHS


def seen_until() -> float:
    """When somebody last looked at results."""
    try:
        return (paths.state_dir() / "seen").stat().st_mtime
    except OSError:
        return 0.0


def mark_seen() -> None:
    """Somebody has looked; a disk that cannot take the note does not matter."""
    try:
        (paths.private_dir(paths.state_dir()) / "seen").touch()
    except OSError:
        pass


def unseen(jobs: Iterable[JobRow], since: float) -> list[JobRow]:
    """Runs that ended after ``since``, newest first."""
    return [
        row
        for row in jobs
        if row.standing.verdict in FINISHED
        and row.standing.state.get("kind") != "queue"
        and (finite(row.standing.state.get("finished")) or 0.0) > since
    ]


def text(rows: list[JobRow]) -> Content:
    """The newest in three lines, the others by name."""
    row = rows[0]
    state, verdict = row.standing.state, row.standing.verdict
    finished = finite(state.get("finished")) or time.time()
    style = "$success" if verdict == "done" else "$error" if verdict == "failed" else "$warning"
    parts: list[Any] = [
        (f"{GLYPHS.get(verdict, '·')} {verdict} ", f"bold {style}"),
        (clean(row.name, 50), "bold"),
        f"  {ago(time.time() - finished)}",
    ]
    if len(rows) > 1:
        parts.append((f"  (and {len(rows) - 1} more ended)", "dim"))
    parts.append(
        "\n" + clean(state["error"], 150) if verdict == "failed" and state.get("error") else "\n" + figures(row)
    )
    parts += ["\n", ("v", "bold"), (" report  ", "dim"), ("c", "bold"), (" chat  ", "dim"), ("e", "bold")]
    parts += [(" export and serve  ", "dim"), ("esc", "bold"), (" hides this", "dim")]
    return Content.assemble(*parts)


def figures(row: JobRow) -> str:
    """Losses, rate, time, heat, proof; only what there is."""
    train, proof = row.train, table(row.prove, "proof")
    rate = finite(table(train, "rates").get("real_tokens_per_s"))
    parts = []
    if finite(train.get("eval_loss_after")) is not None:
        parts.append(f"loss {fixed(train.get('eval_loss_before'))} → {fixed(train.get('eval_loss_after'))}")
    if rate is not None:
        parts.append(f"{number(rate)} tok/s")
    if finite(train.get("train_seconds")) is not None:
        parts.append(duration(train.get("train_seconds")))
    if row.peak_temp_c is not None:
        parts.append(f"peak {row.peak_temp_c:.0f} °C")
    if row.prove.get("verdict") == "passed":
        parts.append(f"served = trained (KL {number(proof.get('mean_kl'))})")
    elif row.prove.get("verdict") == "failed":
        parts.append("PROOF FAILED")
    return " · ".join(parts) or "no figures"
