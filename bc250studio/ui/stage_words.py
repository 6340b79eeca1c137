"""What each stage's record says, in one line for the list of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from bc250studio.errors import clean
from bc250studio.ui.numbers import NA, duration, fixed, number, size

Record = Mapping[str, Any]


def table(record: Record, key: str) -> Record:
    """A table inside a record; empty when it is missing or something else."""
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def _file(path: Any) -> str:
    return clean(PurePath(str(path)).name, 50) if path else NA


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
        f"mean KL {number(proof.get('mean_kl'))} (limit {number(proof.get('limit_kl'))}) · "
        f"top-1 {fixed(proof.get('top1'))} · {number(proof.get('tokens'))} tokens"
    )
    cause = proof.get("cause")
    return text + (f" · {clean(cause, 80)}" if cause else "")


def _ask(record: Record) -> str:
    answers = record.get("answers")
    return f"{len(answers)} questions answered by base and tuned" if isinstance(answers, list) else ""


NOTES: dict[str, Callable[[Record], str]] = {
    "train": _train,
    "export": _export,
    "reference": _reference,
    "serve": _serve,
    "prove": _prove,
    "ask": _ask,
}
