"""What the stages' records say: one line each for the list of steps, the proof and the answers at length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from textual.content import Content

from bc250studio.errors import clean
from bc250studio.jobs import Identity
from bc250studio.ui.follow import RunView
from bc250studio.ui.numbers import NA, duration, finite, fixed, number, size
from bc250studio.ui.words import GLYPHS, STYLES, hanging

Record = Mapping[str, Any]
GOOD = ("done", "passed")
WHAT = {
    "train": "train the adapter",
    "export": "write it as GGUF",
    "reference": "write down what the trained model says",
    "serve": "start llama-server with it",
    "prove": "compare what is served with what was trained",
    "ask": "put questions to base and tuned",
}


def table(record: Record, key: str) -> Record:
    """A table inside a record; empty when it is missing or something else."""
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def _file(path: Any) -> str:
    return clean(PurePath(str(path)).name, 50) if path else NA


def percent(share: Any) -> str:
    """A share of 1 in percent."""
    real = finite(share)
    return NA if real is None else f"{100 * real:.1f} %"


def server_alive(server: Record) -> bool:
    """Whether the process that ``server.json`` names still runs: after a crash or a reboot the file is still there."""
    process = Identity.from_dict(server.get("process"))
    return process is not None and process.alive


def _train(record: Record) -> str:
    rates = table(record, "rates")
    return (
        f"evaluation loss {fixed(record.get('eval_loss_before'))} → {fixed(record.get('eval_loss_after'))} · "
        f"{number(rates.get('real_tokens_per_s'))} tok/s · {duration(record.get('train_seconds'))}"
    )


def _export(record: Record) -> str:
    outputs = table(record, "outputs")
    file = outputs.get("adapter_gguf") or outputs.get("merged_gguf")
    count = record.get("bytes", outputs.get("bytes"))
    return f"{clean(outputs.get('kind') or 'file', 12)} {_file(file)}" + (f" · {size(count)}" if count else "")


def _reference(record: Record) -> str:
    return f"{number(record.get('tokens') or table(record, 'outputs').get('tokens'))} held-out tokens"


def _serve(record: Record) -> str:
    server = table(record, "server")
    words = clean(server.get("backend_words") or server.get("device") or NA, 40)
    return f"{words} · {clean(server.get('url') or NA, 40)} · context {number(server.get('n_ctx'), 5)}"


def _prove(record: Record) -> str:
    proof = table(record, "proof")
    text = (
        f"top-1 {percent(proof.get('top1'))} · KL {number(proof.get('mean_kl'))} · {number(proof.get('tokens'))} tokens"
    )
    cause = proof.get("cause")
    return text + (f" · {clean(cause, 80)}" if cause else "")


def _ask(record: Record) -> str:
    answers = record.get("answers")
    if not isinstance(answers, list):
        return ""
    return f"{len(answers)} question{'' if len(answers) == 1 else 's'} answered by base and tuned"


NOTES: dict[str, Callable[[Record], str]] = {
    "train": _train,
    "export": _export,
    "reference": _reference,
    "serve": _serve,
    "prove": _prove,
    "ask": _ask,
}


# The list of steps


def cells(name: str, run: RunView) -> tuple[Any, ...]:
    """A row of the list of steps."""
    record = run.stages.get(name, {})
    running = run.standing.live and run.state.get("stage") == name
    if running:
        word, note = "running", clean(run.state.get("stage_text") or run.standing.phase, 60)
        done, total = run.state.get("stage_done"), run.state.get("stage_total")
        if name == "train" and run.state.get("steps"):
            note = f"step {run.state.get('step')}/{run.state.get('steps')}"
        elif total:
            note = f"{100 * (done or 0) / total:3.0f} % {note}"
    elif record:
        word = clean(record.get("verdict") or "?", 12)
        note = NOTES[name](record) if word in GOOD or name == "prove" else clean(record.get("error") or "", 200)
    else:
        word, note = "waiting", WHAT[name]
    state = Content.styled(f"{GLYPHS.get(word, '·')} {word}", STYLES.get(word, "dim"))
    took = duration(record.get("seconds")) if record and not running else ""
    return name, _Word(state), took, note


class _Word(Content):
    """Content that compares and measures by its text, for tables."""

    def __init__(self, content: Content) -> None:
        super().__init__(content.plain, list(content.spans))

    def __str__(self) -> str:
        return self.plain


def now(run: RunView) -> Any:
    """What goes on, or how it ended and what can be done next."""
    state = run.state
    if run.standing.live:
        age = f" (news {duration(run.standing.age_s)} old)" if run.standing.age_s > 5 else ""
        text = clean(state.get("stage_text") or run.standing.phase, 120)
        return Content.assemble(("▶ ", "bold $primary"), (f"{clean(state.get('stage') or '', 12)} ", "bold"), text, age)
    if state.get("error"):
        return Content.styled(clean(state["error"], 300), "bold $error")
    if run.stages.get("prove", {}).get("verdict") == "passed":
        if server_alive(run.server):
            return Content.styled("✓ Served, and proven to be what was trained. c opens the chat.", "bold $success")
        return Content.styled("■ Proven, but the server has ended; e starts it again.", "bold $warning")
    return Content.styled(f"{run.standing.verdict}; e does what is missing.", "dim")


# The proof and the answers at length


def proof_text(stages: Mapping[str, Record], width: int) -> Content:
    """The verdict in a line, what was judged, and what quantisation and adapter cost."""
    record = stages.get("prove") or {}
    proof = table(record, "proof")
    if not proof:
        return Content("")
    passed = record.get("verdict") == "passed"
    figures = f"top-1 {percent(proof.get('top1'))}, KL {number(proof.get('mean_kl'))} nats"
    head = f"✓ served = trained: {figures}" if passed else f"✗ SERVED IS NOT WHAT WAS TRAINED: {figures}"
    parts: list[Any] = [(head, "bold $success" if passed else "bold $error")]
    if proof.get("cause"):
        parts.append((pair("cause", clean(proof["cause"], 200), width), "$error"))
    ids = {True: "token ids equal", False: "token ids DIFFERENT"}.get(
        proof.get("ids_equal"),  # type: ignore[arg-type]
        "token ids not compared",
    )
    parts.append(
        pair(
            "judged",
            f"limit {number(proof.get('limit_kl'))}, worst {number(proof.get('worst_kl'))}, "
            f"{number(proof.get('tokens'))} held-out tokens, {ids}",
            width,
        )
    )
    price = table(proof, "price")
    if price:
        parts.append(pair("quantisation", f"costs {number(price.get('mean_kl'))} nats (shown, not judged)", width))
    cost = adapter_cost(stages)
    if cost:
        parts.append(pair("adapter", cost, width))
    return Content.assemble(*parts)


def pair(name: str, text: str, width: int) -> str:
    """A line of the results, wrapped under itself."""
    return "\n" + hanging(f"  {name:<14}", text, width)


def adapter_cost(stages: Mapping[str, Record]) -> str:
    """Tokens a second with the adapter and without: as the prove stage measured them, else as the answers came."""
    rates = table(table(stages.get("prove") or {}, "proof"), "rates")
    with_it = finite(table(rates, "tuned").get("tokens_per_s"))
    without = finite(table(rates, "base").get("tokens_per_s"))
    origin = "by turns"
    if with_it is None or without is None:
        with_it, without = _rate_of_answers(stages, "tuned"), _rate_of_answers(stages, "base")
        origin = "of the answers"
    if not with_it or not without:
        return ""
    share = 100 * (1 - with_it / without)
    words = f"costs {share:.0f} %" if share >= 1 else "costs nothing that can be measured"
    return f"{words}: {number(with_it)} tok/s with it, {number(without)} without ({origin})"


def _rate_of_answers(stages: Mapping[str, Record], side: str) -> float | None:
    answers = (stages.get("ask") or {}).get("answers")
    rates = [
        rate
        for answer in (answers if isinstance(answers, list) else [])
        if isinstance(answer, Mapping) and (rate := finite(table(answer, side).get("tokens_per_s")))
    ]
    return sum(rates) / len(rates) if rates else None


def answers_text(stages: Mapping[str, Record], width: int) -> Content:
    """Every question with the answers of base and tuned, wrapped to ``width`` columns."""
    answers = (stages.get("ask") or {}).get("answers")
    parts: list[Any] = []
    for answer in answers if isinstance(answers, list) else []:
        parts.append((f"\n? {clean(answer.get('prompt') or '', 300)}\n", "bold"))
        for side in ("base", "tuned"):
            said = answer.get(side) or {}
            text = hanging(" " * 8, " ".join(clean(said.get("text") or "", 600).split()), width).lstrip()
            parts += [(f"  {side:<6}", "$success" if side == "tuned" else "dim"), f"{text}\n"]
    return Content.assemble(*parts)
