"""Which products a proof computes: every number type and layout over awkward shapes, and the tuned sizes. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bc250studio.kernels.products import Product

DTYPES = ("fp32", "fp16", "bf16")
LAYOUTS = ("NN", "NT", "TN")

SHAPES = (
    (1, 1, 1), (1, 7, 5), (3, 1, 9), (2, 3, 4), (5, 7, 3), (17, 33, 65), (31, 64, 127), (64, 64, 64),
    (63, 65, 1), (100, 1, 257), (128, 96, 40), (129, 127, 255), (255, 256, 1023), (16, 512, 384), (512, 16, 640),
)  # fmt: skip
"""M, N, K from 1x1x1 up: odd sizes, K tails, sides below any tile, low-rank pairs."""

QUICK_SHAPES = ((1, 1, 1), (17, 33, 65), (129, 127, 255), (16, 512, 384))

BATCHES = ((3, (17, 33, 65)), (5, (64, 48, 32)), (2, (1, 9, 7)))
"""Batch count and M, N, K of the batched products."""

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
ACCUMULATE = 2.0**-24


@dataclass(frozen=True)
class Case:
    """One product to be computed twice and compared with float64.

    ``what``: ``plain``; ``nan in C`` (beta 0 into a result full of NaN); ``alpha beta``; ``padded`` (operands are
    views into wider storage); ``strided batch``; ``broadcast A`` and ``broadcast B`` (batch stride 0).
    """

    dtype: str
    layout: str
    m: int
    n: int
    k: int
    batch: int = 1
    what: str = "plain"
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def name(self) -> str:
        """``fp16 NT 17x33x65 (M x N x K), padded``."""
        batch = f" batch {self.batch}" if self.batch > 1 else ""
        return f"{self.dtype} {self.layout} {self.m}x{self.n}x{self.k}{batch} (M x N x K), {self.what}"

    @property
    def norm_limit(self) -> float:
        """Largest relative error of the whole result (Frobenius): output rounding plus random-walk accumulation."""
        return UNIT_ROUNDOFF[self.dtype] + 8 * math.sqrt(self.k) * ACCUMULATE


def standard(dtypes: Sequence[str] = DTYPES, layouts: Sequence[str] = LAYOUTS, quick: bool = False) -> Iterator[Case]:
    """The cases every proof computes; ``quick`` is the start check's small selection."""
    for dtype in dtypes:
        for layout in layouts:
            for m, n, k in QUICK_SHAPES if quick else SHAPES:
                yield Case(dtype, layout, m, n, k)
                yield Case(dtype, layout, m, n, k, what="nan in C")
                if not quick:
                    yield Case(dtype, layout, m, n, k, what="alpha beta", alpha=-0.75, beta=1.0)
                    yield Case(dtype, layout, m, n, k, what="alpha beta", alpha=2.0, beta=0.5)
                    yield Case(dtype, layout, m, n, k, what="padded")
            for batch, (m, n, k) in BATCHES[:1] if quick else BATCHES:
                for what in ("strided batch", "broadcast A", "broadcast B"):
                    yield Case(dtype, layout, m, n, k, batch, what)
                yield Case(dtype, layout, m, n, k, batch, "alpha beta", alpha=0.5, beta=1.0)


def tuned(products: Sequence[Product]) -> Iterator[Case]:
    """A plain case and one that adds to C for every given product; layouts torch cannot make (TT) included."""
    for product in products:
        size = (product.m, product.n, product.k, product.batch)
        yield Case(product.dtype, product.layout, *size, what="tuned size")
        yield Case(product.dtype, product.layout, *size, what="tuned size, alpha beta", alpha=1.5, beta=1.0)
