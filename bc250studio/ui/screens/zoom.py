"""One chart over the whole screen: scrub through it, look at a part, lay an earlier run under it."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding
from textual.content import Content
from textual.widget import Widget

from bc250studio.errors import clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.follow import RunView
from bc250studio.ui.numbers import duration, number
from bc250studio.ui.screens.base import JobScreen
from bc250studio.ui.series import at
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets import panes
from bc250studio.ui.widgets.braille import Frame, Trace, points, x_frame, y_frame
from bc250studio.ui.widgets.chart import Chart
from bc250studio.ui.widgets.line import Line

ORDER = ("loss", "rate", "temp", "grad", "memory")
NAMES = {"loss": "loss", "rate": "tokens/s", "temp": "temperature", "grad": "gradient norm", "memory": "memory"}
MAIN = {"loss": "loss_ema", "rate": "real_tokens_per_s", "grad": "grad_norm", "memory": "memory_gib"}


class ZoomScreen(JobScreen[None]):
    """Left and right move the reading line, + and - the part that is shown."""

    place = "Chart"
    BINDINGS = [
        Binding(
            "z,tab",
            "next",
            "Next chart",
            id="zoom.next",
            priority=True,
            tooltip="Loss, tokens/s, temperature, gradient, memory",
        ),
        Binding("left", "scrub(-1)", "Read", id="zoom.left", tooltip="Reading line to the left"),
        Binding("right", "scrub(1)", "Read", show=False, id="zoom.right", tooltip="Reading line to the right"),
        Binding(
            "plus,equals_sign", "scale(0.5)", "Closer", id="zoom.in", tooltip="Half the range around the reading line"
        ),
        Binding("minus", "scale(2.0)", "Wider", id="zoom.out", tooltip="Twice the range"),
        Binding("0", "whole", "All", id="zoom.all", tooltip="The whole run, following its end"),
        Binding("o", "overlay", "Overlay", id="zoom.overlay", tooltip="An earlier run of the same profile under it"),
    ]
    DEFAULT_CSS = """
    ZoomScreen #chart { height: 1fr; margin: 0 1; }
    ZoomScreen #reading { height: 1; padding: 0 1; }
    ZoomScreen #title { height: 1; padding: 0 1; }
    """

    def __init__(self, job: JobFolder) -> None:
        super().__init__()
        self.job = job
        self.place = f"Chart ▸ {clean(job.name, 40)}"
        self.which = 0
        self.cursor: float | None = None
        self.span: float | None = None

    def body(self) -> Iterable[Widget]:
        """Title, chart, what the reading line says."""
        yield Line(id="title")
        yield Chart(id="chart", axis=True, empty="nothing measured yet", ascii_only=self.studio.machine.ui.ascii)
        yield Line(id="reading")

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        if action == "overlay" and not self._candidates():
            return "There is no other run of this profile to lay under it."
        return None

    def show(self, snapshot: Snapshot) -> None:
        """Draw the chosen chart."""
        run = self.run
        if run is None:
            return
        name = ORDER[self.which]
        pane = panes.PANES[name](run)
        earlier = snapshot.overlay if self.under is not None else None
        traces = (*_earlier_traces(name, earlier), *pane.traces)
        chart = self.query_one("#chart", Chart)
        chart._x_text = duration if name == "temp" else number
        total = panes.total_steps(run) if name != "temp" else None
        full = Frame(*x_frame(traces, total), *y_frame(traces, pane.limits))
        frame = self._frame(full, traces)
        if self.cursor is not None:
            mark = points([(self.cursor, y) for y in _ladder(frame)])
            traces = (Trace(mark, "cursor", points=True), *traces)
        chart.show(traces, pane.limits, frame=frame, empty=pane.empty, spans=pane.spans)
        under = f"   under it: {clean(self.under.name, 40)}" if self.under else ""
        self.query_one("#title", Line).show(Content.assemble(pane.numbers, (under, "dim")))
        self.query_one("#reading", Line).show(self._reading(name, run, earlier))

    def _frame(self, full: Frame, traces: tuple[Trace, ...]) -> Frame:
        if self.span is None:
            return full
        middle = self.cursor if self.cursor is not None else full.x1
        x0 = min(max(middle - self.span / 2, full.x0), max(full.x0, full.x1 - self.span))
        x1 = x0 + self.span
        seen = tuple(Trace(tuple(b for b in t.curve if b.x1 >= x0 and b.x0 <= x1), t.role) for t in traces)
        return Frame(x0, x1, *y_frame(seen))

    def _reading(self, name: str, run: RunView, earlier: RunView | None) -> str:
        key = MAIN.get(name) or ("gpu_temp_c" if run.curves.get("gpu_temp_c") else "cpu_temp_c")
        if self.cursor is None:
            return "left and right read values; + and - change the range"
        here = at(run.curves.get(key, ()), self.cursor)
        if here is None:
            return "nothing was measured"
        where = f"{duration(here.x0)} after the start" if name == "temp" else f"step {here.x0:.0f}"
        if here.points > 1 and name != "temp":
            where += f"-{here.x1:.0f}"
        text = f"{where}: {NAMES[name]} {number(here.mean, 4)}"
        if here.points > 1:
            text += f" (lowest {number(here.low, 4)}, highest {number(here.high, 4)})"
        before = at(earlier.curves.get(key, ()), self.cursor) if earlier else None
        return text + (f" · earlier run {number(before.mean, 4)}" if before else "")

    # Keys

    def action_next(self) -> None:
        """The next chart, read from its end."""
        self.which = (self.which + 1) % len(ORDER)
        self.cursor = self.span = None
        self.show(self.studio.snapshot)

    def action_scrub(self, direction: int) -> None:
        """One fiftieth of what is shown."""
        chart = self.query_one("#chart", Chart)
        if chart.frame is None:
            return
        frame = chart.frame
        cursor = self.cursor if self.cursor is not None else frame.x1
        width = frame.x1 - frame.x0
        self.cursor = min(max(cursor + direction * width / 50, 0.0), max(frame.x1, cursor))
        self.show(self.studio.snapshot)

    def action_scale(self, factor: float) -> None:
        """Closer or wider around the reading line."""
        chart = self.query_one("#chart", Chart)
        if chart.frame is not None:
            self.span = (chart.frame.x1 - chart.frame.x0) * factor
            run = self.run
            if run is not None and factor > 1 and self.span >= _width(run):
                self.span = None
            self.show(self.studio.snapshot)

    def action_whole(self) -> None:
        """Everything."""
        self.cursor = self.span = None
        self.show(self.studio.snapshot)

    def _candidates(self) -> list[JobFolder]:
        run = self.run
        if run is None:
            return []
        profile = run.state.get("profile")
        rows = [row for row in self.studio.snapshot.jobs if row.standing.state.get("profile") == profile]
        return [row.standing.job for row in rows if row.standing.job.path != self.job.path]

    def action_overlay(self) -> None:
        """The next earlier run, and none after the last."""
        jobs = self._candidates()
        paths = [job.path for job in jobs]
        position = paths.index(self.under.path) + 1 if self.under and self.under.path in paths else 0
        self.under = jobs[position] if position < len(jobs) else None
        self.studio.watcher.follow(self.job, self.under)


def _width(run: RunView) -> float:
    return max((curve[-1].x1 for curve in run.curves.values() if curve), default=1.0)


def _ladder(frame: Frame) -> list[float]:
    return [frame.y0 + (frame.y1 - frame.y0) * i / 60 for i in range(61)]


def _earlier_traces(name: str, run: RunView | None) -> tuple[Trace, ...]:
    if run is None:
        return ()
    key = MAIN.get(name) or ("gpu_temp_c" if run.curves.get("gpu_temp_c") else "cpu_temp_c")
    return (Trace(run.curves.get(key, ()), "earlier"),)


SCREEN = ZoomScreen
