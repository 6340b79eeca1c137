"""What each pane of the training screen says: curves, limits, and the numbers beside them.

Pure functions of a :class:`RunView`; a value that was not measured is n/a with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.content import Content

from bc250studio.ui.follow import RunView, reading_text, trusted
from bc250studio.ui.numbers import NA, duration, finite, fixed, number
from bc250studio.ui.widgets.braille import Limit, Trace, points


@dataclass(frozen=True)
class Pane:
    """A title with numbers, and what to draw below it."""

    numbers: Content
    traces: tuple[Trace, ...] = ()
    limits: tuple[Limit, ...] = ()
    empty: str = "no values yet"
    spans: tuple[tuple[float, float], ...] = ()


def _title(name: str, *parts: str) -> Content:
    return Content.assemble((name, "bold"), "  ", " · ".join(part for part in parts if part))


def total_steps(run: RunView) -> float | None:
    """Planned steps, when known."""
    return finite(run.state.get("steps"))


def loss(run: RunView) -> Pane:
    """Raw, smoothed, evaluations."""
    last = run.latest
    best = run.best_eval
    parts = [
        fixed(last.get("loss")),
        f"ema {fixed(last.get('loss_ema'))}",
        f"best {fixed(best)}" if best is not None else "",
    ]
    traces = (
        Trace(run.curves.get("loss", ()), "earlier"),
        Trace(run.curves.get("loss_ema", ()), "main"),
        Trace(points(run.evaluations), "mark", points=True),
    )
    return Pane(_title("loss", *parts), traces, empty=_no_step(run))


def rate(run: RunView) -> Pane:
    """Real tokens a second; all positions beside it."""
    last = run.latest
    parts = [f"{number(last.get('real_tokens_per_s'))} real", f"{number(last.get('all_positions_per_s'))} positions"]
    traces = (
        Trace(run.curves.get("all_positions_per_s", ()), "earlier"),
        Trace(run.curves.get("real_tokens_per_s", ()), "second"),
    )
    return Pane(_title("tokens/s", *parts), traces, empty=_no_step(run))


def temperature(run: RunView) -> Pane:
    """The GPU's edge temperature; the CPU's where there is no GPU sensor, and called so."""
    gpu, cpu = run.curves.get("gpu_temp_c", ()), run.curves.get("cpu_temp_c", ())
    limits = [Limit(value, f"{name} {value:.0f}") for name, value in run.heat_limits]
    curve, name, key = (gpu, "GPU", "gpu_temp_c") if gpu else (cpu, "CPU", "cpu_temp_c")
    if curve:
        peak = max(b.high for b in curve)
        now = trusted(run.readings.get(key))
        text = f"{now:.0f} °C" if now is not None else reading_text(run.readings, key)
        return Pane(
            _title("temperature", f"{name} {text}", f"peak {peak:.0f}"),
            (Trace(curve, "mark"),),
            tuple(limits),
            spans=_pauses(run),
        )
    why = "no board readings yet"
    if run.readings:
        why = "GPU " + reading_text(run.readings, "gpu_temp_c") + "; CPU " + reading_text(run.readings, "cpu_temp_c")
    elif not run.standing.live:
        why = "n/a: this run has no board readings"
    return Pane(_title("temperature", NA), empty=why)


def _pauses(run: RunView) -> tuple[tuple[float, float], ...]:
    """Pauses on the time axis of the board's curves."""
    if run.board_start is None:
        return ()
    start = run.board_start
    ends = ((p.start - start, (p.end if p.end is not None else run.t) - start) for p in run.told.pauses)
    return tuple((begin, end) for begin, end in ends if end >= 0)


def gradient(run: RunView) -> Pane:
    """Norm of the gradient before clipping."""
    return Pane(
        _title("gradient norm", number(run.latest.get("grad_norm"))),
        (Trace(run.curves.get("grad_norm", ()), "main"),),
        empty=_no_step(run),
    )


def memory(run: RunView) -> Pane:
    """Device memory of the trainer against its budget."""
    budget = run.resolved.profile.train.memory_budget_gib if run.resolved else None
    limits = (Limit(budget, f"budget {budget:g}"),) if budget else ()
    return Pane(
        _title("memory", f"{number(run.latest.get('memory_gib'))} GiB", f"budget {budget:g}" if budget else ""),
        (Trace(run.curves.get("memory_gib", ()), "second"),),
        limits,
        empty=_no_step(run),
    )


PANES: dict[str, Callable[[RunView], Pane]] = {
    "loss": loss,
    "rate": rate,
    "temp": temperature,
    "grad": gradient,
    "memory": memory,
}


def number_title(run: RunView) -> Content:
    """The title of the pane without a chart: how old the board's news is."""
    if run.board_t is None:
        return _title("board", "no readings yet" if run.standing.live else "no readings in this run")
    age = run.t - run.board_t
    return _title("board", f"stale, {duration(age)} old" if run.standing.live and age > 5 else "")


def figures(run: RunView, roomy: bool = False) -> Content:
    """Memory, power, pauses, clock, fan, learning rate, skipped steps, kernels; seven lines unless roomy."""
    last, state = run.latest, run.state
    clock, fan = reading_text(run.readings, "gpu_clock_mhz"), reading_text(run.readings, "fan_rpm")
    skipped = int(finite(state.get("skipped")) or 0)
    rows: list[tuple[str, str, str]] = [
        ("memory", _memory_text(run), ""),
        ("power", _power_text(run), ""),
        ("heat", _heat_text(run), ""),
        ("learning", f"rate {number(last.get('lr'))}, gradient {number(last.get('grad_norm'))}", ""),
        ("steps", f"{number(last.get('step_s'))} s each, {skipped} skipped", "bold $warning" if skipped else ""),
        ("kernels", str(state.get("kernels") or "n/a"), ""),
    ]
    if roomy:
        labelled = f"{number(last.get('labelled_tokens_per_s'))} tokens/s are learnt from"
        rows[3:3] = [("clock", clock, ""), ("fan", fan, ""), ("labelled", labelled, "")]
    else:
        both = clock if clock == fan else f"{clock}, {fan}"
        rows[3:3] = [("board", both, "")]
    parts: list[object] = []
    for name, text, style in rows:
        parts += [(f"{name:<9}", "dim"), (f"{text}\n", style)]
    return Content.assemble(*parts)  # type: ignore[arg-type]


def _memory_text(run: RunView) -> str:
    """The trainer's peak against its budget, and what the machine has left."""
    budget = run.resolved.profile.train.memory_budget_gib if run.resolved else None
    text = f"{number(run.latest.get('memory_gib'))} GiB" + (f" of {budget:g}" if budget else "")
    free = trusted(run.readings.get("mem_available_mib"))
    return text + (f", {free / 1024:.1f} GiB free" if free is not None else "")


def _power_text(run: RunView) -> str:
    text = reading_text(run.readings, "gpu_power_w")
    return text + (f", mean {run.mean_power_w:.0f} W" if run.mean_power_w is not None else "")


def _heat_text(run: RunView) -> str:
    """Rests and time at the throttle point."""
    count = len(run.told.pauses)
    rests = f"{count} pause{'s' if count > 1 else ''}, {duration(run.paused_s)}" if count else "no pause"
    if run.throttled_s is None:  # a run of days: its guard's file is sampled, and so is what lies between
        return rests
    return rests + (f", throttled {duration(run.throttled_s)}" if run.throttled_s >= 1 else ", not throttled")


def _no_step(run: RunView) -> str:
    if run.standing.live:
        return "no step yet"
    return "this run made no step"
