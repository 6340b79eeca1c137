"""How far is what the server says from what it should say: KL divergence over its top tokens and a rest bucket.

The server sends its 20 likeliest tokens; each has a bucket, all others share one. KL = sum p ln(p / q) over the
buckets, p the reference's (which holds 64 tokens), in nats. Coarser buckets can only lower it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bc250studio.serve.reference import Variant
from bc250studio.serve.talk import Top

LEAD_NATS = 0.1
WIDTH = 20
_TINY = 1e-9


@dataclass(frozen=True)
class Distance:
    """Over ``tokens`` positions: mean and worst KL in nats; ``top1`` is the share of equal first choices
    among the ``decided`` positions, where the reference's first choice leads by over 0.1 nat (1.0 when none does)."""

    mean_kl: float
    worst_kl: float
    top1: float
    tokens: int
    decided: int

    def as_dict(self) -> dict[str, float | int]:
        """Rounded for records."""
        return {
            "mean_kl": round(self.mean_kl, 6),
            "worst_kl": round(self.worst_kl, 6),
            "top1": round(self.top1, 6),
            "tokens": self.tokens,
            "decided": self.decided,
        }


def kl(ids: np.ndarray, logp: np.ndarray, top: Top) -> float:
    """KL(reference || server) at one position; ``ids`` and ``logp`` [64] are the reference's.

    A token of the server's that is not among the reference's 64 has a p of at most the 64th: together they get
    the p within that bound that makes the result smallest, so it is never larger than the true KL.
    """
    known = np.isin(ids, top.ids)
    at = {int(token): i for i, token in enumerate(top.ids)}
    log_p = logp[known].astype(np.float64)
    log_q = np.array([top.logp[at[int(token)]] for token in ids[known]], dtype=np.float64)
    result = float((np.exp(log_p) * (log_p - log_q)).sum())
    left_p = max(1.0 - float(np.exp(log_p).sum()), 0.0)
    strange_q = float(np.exp(top.logp[~np.isin(top.ids, ids)]).sum())
    rest_q = max(1.0 - float(np.exp(log_q).sum()) - strange_q, _TINY)
    unseen_p = max(1.0 - float(np.exp(logp.astype(np.float64)).sum()), 0.0)
    bound = min(unseen_p, (len(top.ids) - len(log_q)) * float(np.exp(logp[-1])))
    strange_p = min(left_p * strange_q / (strange_q + rest_q), bound)
    for p, q in ((strange_p, strange_q), (left_p - strange_p, rest_q)):
        if p > _TINY:
            result += p * float(np.log(p / max(q, _TINY)))
    return max(0.0, result)


def distance(variant: Variant, tops: Sequence[Top], rows: Sequence[int] | None = None) -> Distance:
    """The server's ``tops`` against a variant; ``rows`` are the positions they belong to (all, in order)."""
    chosen = range(len(tops)) if rows is None else rows
    values, equal, decided = [], 0, 0
    for row, top in zip(chosen, tops, strict=True):
        values.append(kl(variant.ids[row], variant.logp[row], top))
        if variant.logp[row, 0] - variant.logp[row, 1] > LEAD_NATS:
            decided += 1
            equal += int(variant.ids[row, 0]) == int(top.ids[0])
    return Distance(
        float(np.mean(values)) if values else 0.0,
        float(np.max(values)) if values else 0.0,
        equal / decided if decided else 1.0,
        len(values),
        decided,
    )


def as_variant(tops: Sequence[Top]) -> Variant:
    """What one server (or scale) said, as a reference for another."""
    width = min(len(top.ids) for top in tops)
    return Variant(
        np.stack([top.ids[:width] for top in tops]).astype(np.int32),
        np.stack([top.logp[:width] for top in tops]).astype(np.float32),
    )


def between(one: Variant, other: Variant) -> float:
    """Mean KL(one || other) over the other's first 20 tokens: how much an adapter changes."""
    values = []
    for row in range(len(one.ids)):
        top = Top(other.ids[row, :WIDTH].astype(np.int64), other.logp[row, :WIDTH].astype(np.float64))
        values.append(kl(one.ids[row], one.logp[row], top))
    return float(np.mean(values)) if values else 0.0
