"""Two runs side by side: what their profiles do differently first, then what came of it, then their curves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio.errors import clean
from bc250studio.jobs import JobFolder
from bc250studio.profiles.profile import sections
from bc250studio.ui.draft import shown
from bc250studio.ui.follow import RunView
from bc250studio.ui.numbers import NA, duration, finite, fixed, number
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.series import Curve
from bc250studio.ui.stage_words import table
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.braille import Frame, Trace, x_frame, y_frame
from bc250studio.ui.widgets.chart import Chart
from bc250studio.ui.widgets.line import Line

CURVES = {
    "smoothed loss": ("loss_ema",),
    "real tokens/s": ("real_tokens_per_s",),
    "temperature °C": ("gpu_temp_c", "cpu_temp_c"),
}
HOT_START_C = 5.0
NAME, VALUE = 24, 26


class CompareScreen(StudioScreen[None]):
    """A and B."""

    place = "Compare"
    BINDINGS = [
        Binding("z", "curve", "Next curve", id="compare.curve", tooltip="Loss, tokens/s, temperature"),
        Binding("o", "overlay", "Over/beside", id="compare.overlay", tooltip="Curves over each other, or side by side"),
    ]
    DEFAULT_CSS = """
    CompareScreen #names { height: 2; padding: 0 1; }
    CompareScreen VerticalScroll { height: 1fr; padding: 0 1; }
    CompareScreen #table { height: auto; }
    CompareScreen #charts { height: 7; }
    CompareScreen.-high #charts { height: 14; }
    CompareScreen Chart { width: 1fr; height: 100%; margin: 0 1; }
    CompareScreen #chart-b { display: none; }
    CompareScreen.-beside #chart-b { display: block; }
    """

    def __init__(self, first: JobFolder, second: JobFolder) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.which = 0
        self.beside = "NO_COLOR" in os.environ

    def body(self) -> Iterable[Widget]:
        """Names, differences, figures, curves."""
        plain = self.studio.machine.ui.ascii
        yield Line(id="names")
        with VerticalScroll(can_focus=True):
            yield Line(id="table")
        yield Line(id="chart-head", classes="head")
        with Horizontal(id="charts"):
            yield Chart(id="chart", axis=True, empty="neither made a step", ascii_only=plain)
            yield Chart(id="chart-b", axis=True, empty="B made no step", ascii_only=plain)

    def on_screen_resume(self) -> None:
        """Both are followed."""
        self.studio.watcher.follow(self.first, self.second)
        super().on_screen_resume()

    def show(self, snapshot: Snapshot) -> None:
        """Fill."""
        a, b = snapshot.run, snapshot.overlay
        if a is None or b is None or a.job.path != self.first.path or b.job.path != self.second.path:
            return
        self.query_one("#names", Line).show(
            Content.assemble(
                ("A ", "bold $primary"), clean(a.job.name, 60), "\n", ("B ", "bold"), clean(b.job.name, 60)
            )
        )
        self.query_one("#table", Line).show(comparison(a, b))
        self._show_curves(a, b)

    def _show_curves(self, a: RunView, b: RunView) -> None:
        name, keys = list(CURVES.items())[self.which]
        first, second = _curve(a, keys), _curve(b, keys)
        missing = [letter for letter, curve in (("A", first), ("B", second)) if not curve]
        how = "A left, B right, the same scale" if self.beside else "A in colour, B grey"
        head = f"{name}   {how}" + (f"   ({' and '.join(missing)} recorded none)" if missing else "")
        self.query_one("#chart-head", Line).show(head)
        self.set_class(self.beside, "-beside")
        traces = (Trace(second, "earlier"), Trace(first, "main"))
        frame = Frame(*x_frame(traces), *y_frame(traces)) if first or second else None
        chart, other = self.query_one("#chart", Chart), self.query_one("#chart-b", Chart)
        if self.beside:
            chart.show((Trace(first, "main"),), frame=frame, empty="A recorded none")
            other.show((Trace(second, "main"),), frame=frame, empty="B recorded none")
        else:
            chart.show(traces, frame=frame, empty="neither recorded any")

    def action_curve(self) -> None:
        """Another curve."""
        self.which = (self.which + 1) % len(CURVES)
        self.show(self.studio.snapshot)

    def action_overlay(self) -> None:
        """Over each other, or side by side (without colours they could not be told apart)."""
        self.beside = not self.beside
        self.show(self.studio.snapshot)


def _curve(run: RunView, keys: tuple[str, ...]) -> Curve:
    """The first of these curves that has points, from its own start."""
    curve = next((run.curves[key] for key in keys if run.curves.get(key)), ())
    if not curve or "loss" in keys[0] or "tokens" in keys[0]:
        return curve
    start = curve[0].x0
    return tuple(bucket._replace(x0=bucket.x0 - start, x1=bucket.x1 - start) for bucket in curve)


def comparison(a: RunView, b: RunView) -> Content:
    """Configuration difference first; then figures, with the start temperature among them."""
    parts: list[Any] = [(_columns("profile difference", "A", "B"), "bold")]
    lines = differences(a, b)
    parts += [_columns(*line) for line in lines] or [f"  {no_difference(a, b)}\n"]
    parts.append((f"\n{_columns('figures', 'A', 'B')}", "bold"))
    for name, left, right in zip(FIGURES, figures(a), figures(b), strict=True):
        parts.append(_columns(name, left, right))
    starts = [start_temperature(run) for run in (a, b)]
    if starts[0] is not None and starts[1] is not None and abs(starts[0] - starts[1]) >= HOT_START_C:
        hot = "A" if starts[0] > starts[1] else "B"
        parts.append(
            (f"! {hot} started {abs(starts[0] - starts[1]):.0f} °C hotter: a slower rate may be heat.\n", "$warning")
        )
    return Content.assemble(*parts)


def _columns(name: str, left: str, right: str) -> str:
    return f"{name:<{NAME}} {left:<{VALUE}} {right}\n"


def no_difference(a: RunView, b: RunView) -> str:
    """Why the list of differences is empty."""
    for letter, run in (("A", a), ("B", b)):
        if run.resolved is None:
            return f"not known: {letter} has no readable profile"
    return "none: the profiles are equal"


def differences(a: RunView, b: RunView) -> list[tuple[str, str, str]]:
    """Keys whose values differ."""
    if a.resolved is None or b.resolved is None:
        return []
    found = []
    for section in sections():
        left, right = getattr(a.resolved.profile, section), getattr(b.resolved.profile, section)
        for key in type(left).model_fields:
            one, two = getattr(left, key), getattr(right, key)
            if one != two:
                found.append((f"{section}.{key}", tail(shown(one) or "-", VALUE), tail(shown(two) or "-", VALUE)))
    return found


def tail(text: str, width: int) -> str:
    """A long value by its end: of two paths, that is where they differ."""
    text = clean(text)
    return text if len(text) <= width else "…" + text[1 - width :]


FIGURES = (
    "verdict", "loss before", "loss after", "best evaluation", "real tokens/s", "all positions/s", "peak memory",
    "training time", "start temperature", "peak temperature", "mean power", "paused", "proof: mean KL", "proof: top-1",
)  # fmt: skip


def figures(run: RunView) -> list[str]:
    """In the order of FIGURES."""
    train, prove = run.stages.get("train", {}), run.stages.get("prove", {})
    rates = table(train, "rates")
    proof = table(prove, "proof")
    temps = run.curves.get("gpu_temp_c") or run.curves.get("cpu_temp_c") or ()
    start = start_temperature(run)
    return [
        run.standing.verdict,
        fixed(train.get("eval_loss_before")),
        fixed(train.get("eval_loss_after")),
        fixed(run.best_eval),
        number(rates.get("real_tokens_per_s", run.state.get("real_tokens_per_s"))),
        number(rates.get("all_positions_per_s")),
        f"{number(train.get('peak_memory_gib'))} GiB" if finite(train.get("peak_memory_gib")) is not None else NA,
        duration(train.get("train_seconds")),
        f"{start:.0f} °C" if start is not None else NA,
        f"{max(b.high for b in temps):.0f} °C" if temps else NA,
        f"{run.mean_power_w:.0f} W" if run.mean_power_w is not None else NA,
        duration(run.paused_s),
        number(proof.get("mean_kl")),
        fixed(proof.get("top1")),
    ]


def start_temperature(run: RunView) -> float | None:
    """The first trusted temperature: of the first bucket the end that the curve comes from."""
    temps = run.curves.get("gpu_temp_c") or run.curves.get("cpu_temp_c") or ()
    if not temps:
        return None
    falls = len(temps) > 1 and temps[1].mean < temps[0].mean
    return temps[0].high if falls else temps[0].low


SCREEN = CompareScreen
