"""Is what answers what was trained? Teacher forcing over HTTP against the reference that torch wrote.

*Same adapter*: the server at scale 1 against torch with the served file's own weights + adapter; judged.
*Base*: the server at scale 0 against torch with the served file's weights alone; judged.
*Price of quantisation*: the server at scale 1 against the training weights + adapter; shown, not judged.
Greedy texts are never compared: near ties flip with harmless rounding, probabilities do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bc250studio.errors import BadInput
from bc250studio.jobs.progress import Progress, silent
from bc250studio.serve import divergence
from bc250studio.serve.divergence import Distance
from bc250studio.serve.reference import ADAPTER, BASE, MERGED, TRAINED, Reference
from bc250studio.serve.talk import Talk, Top

LIMIT_EXACT, LIMIT_QUANTISED = 0.002, 0.01
NO_CHANGE_NATS = 1e-4  # below this an adapter changes less than rounding does
_EXACT_TYPES = (0, 1, 32)  # GGUF general.file_type of all-f32, mostly f16, mostly bf16


@dataclass
class Proof:
    """What was compared and what came out. ``passed`` is the verdict, ``cause`` why it is not."""

    adapter: Distance
    limit_kl: float
    min_top1: float
    base: Distance | None = None
    price: Distance | None = None
    ids_equal: bool | None = None
    ids_checked: int = 0
    ids_note: str = ""
    closing_stops: bool | None = None
    change_expected: float | None = None
    change_served: float | None = None
    merged: bool = False
    merge: Distance | None = None
    merge_share: float | None = None
    rates: dict[str, Any] = field(default_factory=dict)
    cause: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether the served adapter is the trained one, by the numbers alone.

        A merged file of 16 bits or more must also be what base and adapter give together; of a quantised one that
        distance is a price, and its weights are judged by ``merge_check`` instead.
        """
        judged = [self.adapter]
        if self.merge is not None and self.limit_kl <= LIMIT_EXACT:
            judged.append(self.merge)
        return all(found.mean_kl <= self.limit_kl and found.top1 >= self.min_top1 for found in judged)

    @property
    def base_same(self) -> bool:
        """Whether the served base is the base: by its KL. Its first choices are shown only; where nothing was trained
        they are often near ties, which harmless rounding flips."""
        return self.base is None or self.base.mean_kl <= self.limit_kl

    @property
    def ignored(self) -> bool:
        """The adapter should change the distribution, and on the server it does not."""
        return (
            self.change_expected is not None
            and self.change_served is not None
            and self.change_expected > NO_CHANGE_NATS
            and self.change_served < 0.05 * self.change_expected
        )

    @property
    def passed(self) -> bool:
        """The verdict."""
        return (
            self.same
            and self.base_same
            and not self.ignored
            and self.ids_equal is not False
            and self.closing_stops is not False
            and not self.cause
        )

    def as_dict(self) -> dict[str, Any]:
        """The record ``proof`` of the prove stage."""
        return {
            **self.adapter.as_dict(),
            "limit_kl": self.limit_kl,
            "min_top1": self.min_top1,
            "ids_equal": self.ids_equal,
            "ids_checked": self.ids_checked,
            "ids_note": self.ids_note,
            "closing_stops": self.closing_stops,
            "base": self.base.as_dict() if self.base else None,
            "price": self.price.as_dict() if self.price else None,
            "change": {"expected": _rounded(self.change_expected), "served": _rounded(self.change_served)},
            "merged": self.merged,
            "merge": self.merge.as_dict() if self.merge else None,
            "merge_share": _rounded(self.merge_share),
            "rates": self.rates or None,
            "cause": self.cause or None,
            "notes": self.notes,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def limit_for(model: Path, wanted: float | None) -> float:
    """The largest mean KL in nats: as the profile says, else 0.002 for an f32, f16 or bf16 file, 0.01 for others."""
    if wanted is not None:
        return wanted
    from bc250studio.models.gguf_header import read_header

    return LIMIT_EXACT if read_header(model, arrays=False).get("general.file_type") in _EXACT_TYPES else LIMIT_QUANTISED


def guard_token(talk: Talk) -> int:
    """A plain token for the server to pick (see :meth:`Talk.top`)."""
    ids = talk.tokenize("the")
    if not ids:
        raise BadInput(f"{talk.url} makes no tokens of a plain word; its model has no tokenizer.")
    return ids[0]


def collect(
    talk: Talk,
    reference: Reference,
    scale: float,
    guard: int,
    rows: Sequence[int] | None = None,
    progress: Progress = silent,
    text: str = "comparing",
    slot: int | None = None,
) -> list[Top]:
    """The server's top tokens at the reference's positions (``rows``, or all), one request each."""
    chosen = range(reference.count) if rows is None else rows
    tops = []
    for done, row in enumerate(chosen):
        tops.append(talk.top(reference.prompt(row), scale, guard, slot=slot))
        progress(text, float(done + 1), float(len(chosen)))
    return tops


def spread(count: int, wanted: int) -> list[int]:
    """``wanted`` of ``count`` positions, evenly spread: enough to tell causes apart."""
    step = max(1, count // max(wanted, 1))
    return list(range(0, count, step))[:wanted]


def measure(
    talk: Talk, reference: Reference, limit_kl: float, min_top1: float, merged: bool, progress: Progress = silent
) -> tuple[Proof, list[Top]]:
    """All figures of one server; also the server's own answers at scale 1, for bisecting."""
    judge = reference.variants.get(MERGED) if merged else None
    judge = judge or reference.variants.get(ADAPTER)
    if judge is None:
        raise BadInput("The reference holds no distribution for the served adapter; write it again.")
    guard = guard_token(talk)
    tuned = collect(talk, reference, 1.0, guard, progress=progress, text="comparing the tuned model")
    proof = Proof(divergence.distance(judge, tuned), limit_kl, min_top1, merged=merged)
    trained, base = reference.variants.get(TRAINED), reference.variants.get(BASE)
    together = reference.variants.get(ADAPTER)
    if merged and together is not None:
        proof.merge = divergence.distance(together, tuned)
    if trained is not None:
        proof.price = divergence.distance(trained, tuned)
    if base is not None:
        proof.change_expected = divergence.between(judge, base)
        if talk.has_adapter:
            plain = collect(talk, reference, 0.0, guard, progress=progress, text="comparing the base model")
            proof.base = divergence.distance(base, plain)
            proof.change_served = divergence.between(divergence.as_variant(tuned), divergence.as_variant(plain))
        else:
            proof.change_served = divergence.between(divergence.as_variant(tuned), base)
        if proof.change_expected <= NO_CHANGE_NATS:
            proof.notes.append(
                f"the adapter changes almost nothing (KL {proof.change_expected:.1e}), so its proof says little"
            )
    return proof, tuned
