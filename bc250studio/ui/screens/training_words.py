"""What the training screen says in words: progress, what holds the run up, its last answer, its last events."""

from __future__ import annotations

from typing import Any

from textual.content import Content

from bc250studio.errors import clean
from bc250studio.ui.follow import RunView
from bc250studio.ui.numbers import bar, clock, duration, number
from bc250studio.ui.words import verdict_text


def progress(run: RunView, width: int, ascii_only: bool) -> Any:
    """Verdict, step, epoch, time left; a bar, or what the present stage does."""
    state = run.state
    verdict = run.standing.verdict
    style = (
        "bold $error" if verdict in ("failed", "stuck") else "bold $warning" if verdict == "lost" else "bold $primary"
    )
    head: list[Any] = [(verdict_text(run.standing), style)]
    if run.state.get("error") and verdict != "live":
        return Content.assemble(*head, "  ", (clean(run.state["error"], 200), ""))
    steps, step = state.get("steps"), state.get("step")
    if isinstance(steps, int) and isinstance(step, int) and steps > 0:
        head.append(f"  step {step}/{steps}")
        if state.get("epoch") is not None:
            head.append(f" · epoch {number(state['epoch'])}")
        if verdict == "live" and state.get("stage") in (None, "train"):
            head.append(f" · ETA {duration(state.get('eta_s'))}")
        if state.get("device"):
            head.append(f" · {clean(state['device'], 30)}")
        second = f"{bar(step / steps, max(10, width - 9), ascii_only)} {100 * step / steps:3.0f} %"
    else:
        second = ""
    if verdict == "live" and state.get("stage") not in (None, "train"):
        done, total = state.get("stage_done"), state.get("stage_total")
        share = f" {100 * (done or 0) / total:.0f} %" if total else ""
        second = f"{clean(state.get('stage') or '', 20)}: {clean(state.get('stage_text') or '', 100)}{share}"
    elif verdict == "live" and not second:
        second = clean(state.get("stage_text") or "", 120)
    return Content.assemble(*head, "\n", second)


def events_text(run: RunView, count: int) -> str:
    """The last events, one a line, with their time of day."""
    lines = []
    for event in run.events[-count:]:
        text = clean(event.get("text") or event.get("event") or "", 300).replace("\n", " ")
        lines.append(f"{clock(event.get('t'))} {text}")
    return "\n".join(lines)


def held_up(run: RunView) -> Content | None:
    """What keeps a live run from going on, and why; None when nothing does. A stall is the loudest."""
    if not run.standing.live:
        return None
    told = run.told
    if told.stall is not None:
        head = f" STALLED {duration(run.t - told.stall.since)}, since {clock(told.stall.since, '%H:%M')} "
        return Content.assemble((head, "bold reverse $error"), f" {told.stall.text}")
    if told.pause is not None:
        kind, style = {
            "heat": ("TOO HOT, RESTING", "$error"), "memory": ("OUT OF MEMORY, WAITING", "$error"),
        }.get(told.pause.reason, ("PAUSED", "$warning"))  # fmt: skip
        text = told.pause.text or "Paused."
        if told.pause.reason == "asked":
            text += " p goes on."
        return Content.assemble((f" {kind} {duration(run.t - told.pause.start)} ", f"bold reverse {style}"), f" {text}")
    if told.blind:
        return Content.assemble((" HEAT LIMITS BLIND ", "bold reverse $warning"), f" {told.blind}")
    return None


def sample_line(run: RunView) -> Content:
    """The newest sample answer in a line; the whole of it is one key away."""
    if not run.told.samples:
        return Content("")
    last = run.told.samples[-1]
    return Content.assemble(
        (f"step {last.step} ", "bold"),
        _flat(last.prompt),
        (" → ", "bold"),
        (_flat(last.answer) or "(nothing)", "$accent"),
    )


def _flat(text: str) -> str:
    return " ".join(clean(text, 400).split())


def summary(run: RunView) -> str:
    """The run as a few lines of plain text, for the clipboard."""
    last, state = run.latest, run.state
    where = f"step {number(state.get('step'))} of {number(state.get('steps'))}, epoch {number(state.get('epoch'))}"
    losses = f"loss {number(last.get('loss'), 4)}, smoothed {number(last.get('loss_ema'), 4)}"
    real, positions = number(last.get("real_tokens_per_s")), number(last.get("all_positions_per_s"))
    lines = [
        f"{run.job.name}: {verdict_text(run.standing)}",
        f"{where}, time left {duration(state.get('eta_s'))}",
        f"{losses}, best held-out {number(run.best_eval, 4)}",
        f"{real} real tokens/s, {positions} positions/s",
        str(run.job.path),
    ]
    return "\n".join(lines) + "\n"
