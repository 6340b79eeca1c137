"""Two runs side by side: how their profiles differ first, then figures, then curves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio.errors import clean
from bc250studio.jobs import JobFolder
from bc250studio.profiles.profile import sections
from bc250studio.ui.draft import shown
from bc250studio.ui.follow import RunView
from bc250studio.ui.numbers import NA, duration, finite, fixed, number
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.stage_words import table
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.braille import Trace
from bc250studio.ui.widgets.chart import Chart
from bc250studio.ui.widgets.line import Line


class CompareScreen(StudioScreen[None]):
    """A and B."""

    place = "Compare"
    DEFAULT_CSS = """
    CompareScreen #names { height: 2; padding: 0 1; }
    CompareScreen VerticalScroll { height: 1fr; padding: 0 1; }
    CompareScreen #table { height: auto; }
    CompareScreen Chart { height: 7; margin: 0 1; }
    """

    def __init__(self, first: JobFolder, second: JobFolder) -> None:
        super().__init__()
        self.first, self.second = first, second

    def body(self) -> Iterable[Widget]:
        """Names, differences, loss curves."""
        yield Line(id="names")
        with VerticalScroll(can_focus=True):
            yield Line(id="table")
        yield Line("smoothed loss", classes="head")
        yield Chart(id="chart", axis=True, empty="neither made a step", ascii_only=self.studio.machine.ui.ascii)

    def on_screen_resume(self) -> None:
        """Both are followed."""
        self.studio.watcher.follow(self.first, self.second)
        super().on_screen_resume()

    def show(self, snapshot: Snapshot) -> None:
        """Fill."""
        a, b = snapshot.run, snapshot.overlay
        if a is None or b is None or a.job.path != self.first.path:
            return
        self.query_one("#names", Line).show(
            Content.assemble(
                ("A ", "bold $primary"), clean(a.job.name, 60), "\n", ("B ", "bold"), clean(b.job.name, 60)
            )
        )
        self.query_one("#table", Line).show(comparison(a, b))
        self.query_one("#chart", Chart).show(
            (Trace(b.curves.get("loss_ema", ()), "earlier"), Trace(a.curves.get("loss_ema", ()), "main"))
        )


def comparison(a: RunView, b: RunView) -> Content:
    """Configuration difference first; then figures, with the start temperature among them."""
    parts: list[Any] = [(f"{'profile difference':<26}{'A':<24}B\n", "bold")]
    lines = differences(a, b)
    parts += [f"{key:<26}{left:<24}{right}\n" for key, left, right in lines] or ["  none: the profiles are equal\n"]
    parts.append((f"\n{'figures':<26}{'A':<24}B\n", "bold"))
    for name, left, right in zip(FIGURES, figures(a), figures(b), strict=True):
        parts.append(f"{name:<26}{left:<24}{right}\n")
    starts = [start_temperature(run) for run in (a, b)]
    if starts[0] is not None and starts[1] is not None and abs(starts[0] - starts[1]) >= 5:
        parts.append(("The starts differ by 5 °C or more: a slower rate may be heat, not the recipe.\n", "$warning"))
    return Content.assemble(*parts)


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
                found.append((f"{section}.{key}", clean(shown(one) or "-", 22), clean(shown(two) or "-", 30)))
    return found


FIGURES = (
    "verdict", "loss after", "best evaluation", "real tokens/s", "all positions/s", "peak memory", "training time",
    "start temperature", "peak temperature", "mean KL", "top-1",
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
        fixed(train.get("eval_loss_after")),
        fixed(run.best_eval),
        number(rates.get("real_tokens_per_s", run.state.get("real_tokens_per_s"))),
        number(rates.get("all_positions_per_s")),
        f"{number(train.get('peak_memory_gib'))} GiB" if finite(train.get("peak_memory_gib")) is not None else NA,
        duration(train.get("train_seconds")),
        f"{start:.0f} °C" if start is not None else NA,
        f"{max(b.high for b in temps):.0f} °C" if temps else NA,
        number(proof.get("mean_kl")),
        fixed(proof.get("top1")),
    ]


def start_temperature(run: RunView) -> float | None:
    """The first trusted temperature of the run."""
    temps = run.curves.get("gpu_temp_c") or run.curves.get("cpu_temp_c") or ()
    return temps[0].mean if temps else None


SCREEN = CompareScreen
