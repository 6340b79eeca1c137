"""What the home screen and the list of runs say of a run and of a profile."""

from __future__ import annotations

import time
from typing import Any

from textual.content import Content

from bc250studio import profiles
from bc250studio.errors import clean
from bc250studio.ui.numbers import NA, ago, bar, duration, fixed, number
from bc250studio.ui.stage_words import table
from bc250studio.ui.watch import JobRow
from bc250studio.ui.words import GLYPHS, STALE_S, short_base, verdict_text

RUN_COLUMNS = ("run", "verdict", "final loss", "best", "tok/s", "peak", "when")
RUN_ELASTIC = ("run", "verdict")
RUN_NUMBERS = ("final loss", "best", "tok/s", "peak")


def live_text(row: JobRow | None, ascii_only: bool) -> Content:
    """The live run in two lines, or what to do without one."""
    if row is None:
        return Content.assemble(("No live run. ", "dim"), ("n", "bold"), (" starts a new fine-tune.", "dim"))
    state = row.standing.state
    head = Content.assemble((f"{verdict_text(row.standing)} ", "bold $primary"), (clean(row.name), "bold"))
    if state.get("stage") == "train" and state.get("steps"):
        share = (state.get("step") or 0) / state["steps"]
        return Content.assemble(
            head, f"\n{bar(share, 24, ascii_only)} step {state.get('step', 0)}/{state['steps']} · "
            f"loss {fixed(state.get('loss_ema') or state.get('loss'))} · "
            f"{number(state.get('real_tokens_per_s'))} tok/s · ETA {duration(state.get('eta_s'))}",
        )  # fmt: skip
    return Content.assemble(head, f"\n{clean(state.get('stage_text') or '', 100)}")


def profile_cells(name: str, resolved: profiles.Resolved, last: JobRow | None) -> tuple[Any, ...]:
    """The cells of one profile with the result of its last run."""
    profile = resolved.profile
    data = short_base(profile.data.path.removeprefix("assets:"))
    if last is None:
        result = "never run"
    else:
        loss = last.train.get("eval_loss_after")
        result = f"{GLYPHS.get(last.standing.verdict, '·')} {last.standing.verdict}"
        result += f" {fixed(loss)}" if loss is not None else ""
        result += f", {ago(age_s(last))}"
    return name, short_base(profile.model.base), data, result


def run_cells(row: JobRow) -> tuple[Any, ...]:
    """The cells of one run in a list."""
    state, train = row.standing.state, row.train
    loss = train.get("eval_loss_after", state.get("eval_loss"))
    best = state.get("best_eval_loss")
    rates = table(train, "rates")
    rate = rates.get("real_tokens_per_s", state.get("real_tokens_per_s"))
    verdict = verdict_text(row.standing).partition(" (news")[0]
    if row.standing.live and row.standing.age_s > STALE_S:
        verdict += " (stale)"
    if row.prove.get("verdict") == "failed":
        verdict = "✗ proof failed"
    if state.get("recording"):
        verdict += " (rec)"
    return (
        clean(row.name, 60),
        verdict,
        fixed(loss) if loss is not None else fixed(state.get("loss_ema")),
        fixed(best),
        number(rate),
        f"{row.peak_temp_c:.0f} °C" if row.peak_temp_c is not None else NA,
        ago(age_s(row)),
    )


def age_s(row: JobRow) -> float | None:
    """Seconds since it was created."""
    created = row.standing.state.get("created")
    return max(0.0, time.time() - created) if isinstance(created, (int, float)) else None
