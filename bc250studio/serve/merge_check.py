"""Does a merged file hold the base plus this adapter? Measured in the weights, where rounding cannot hide it.

For each changed tensor: s = <merged - base, change> / <change, change>, over a sample of rows. 1 means the
adapter is in it exactly once; quantisation noise does not point along the change, so it averages out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bc250studio.errors import BadInput
from bc250studio.export.changes import plan_adapter
from bc250studio.export.peft_adapter import read_adapter
from bc250studio.models.gguf_file import GgufFile

ROWS = 192
TOLERANCE_EXACT = 0.03
EXACT = frozenset({"f32", "f16", "bf16"})


@dataclass(frozen=True)
class Merge:
    """``share``: how often the adapter's change is in the file (1.0 is right); by tensor in ``shares``.

    ``exact``: the changed tensors are stored in 16 bits or more, so the share may be judged.
    """

    share: float
    shares: dict[str, float]
    exact: bool

    @property
    def fault(self) -> str:
        """What is wrong with the merge, in words; empty when nothing is, or when it cannot be judged."""
        if not self.exact or all(abs(share - 1) <= TOLERANCE_EXACT for share in self.shares.values()):
            return ""
        wrong = {name: share for name, share in self.shares.items() if abs(share - 1) > TOLERANCE_EXACT}
        if all(abs(share) < TOLERANCE_EXACT for share in self.shares.values()):
            return "merge: the file holds the base alone, the adapter is not in it"
        if all(re.search(r"attn_[qk]\.", name) for name in wrong):
            return "merge, permutation: the rows of q and k were not reordered for this model's rotary layout"
        values = list(self.shares.values())
        if max(values) - min(values) < TOLERANCE_EXACT:
            return f"merge, scale: the adapter is in the file {self.share:.3g} times"
        first = min(wrong, key=lambda name: -abs(wrong[name] - 1))
        said = f"first {first} ({wrong[first]:.3g} times)"
        return f"merge: {len(wrong)} of {len(values)} changed tensors are wrong, {said}"


def check_merge(trained: Path, base_gguf: Path, merged_gguf: Path) -> Merge | None:
    """Measure a merged file; None when the fine-tune is not made of plain LoRA pairs.

    Raises:
        BadInput: a file is damaged, or the files do not belong together.
    """
    with GgufFile(base_gguf) as base, GgufFile(merged_gguf) as merged:
        plan = plan_adapter(read_adapter(trained), base)
        shares: dict[str, float] = {}
        above = below = 0.0
        exact = True
        for name, change in plan.changes.items():
            if not change.products or change.segments or change.magnitude is not None or name not in base.tensors:
                continue
            tensor = merged.tensors.get(name)
            if tensor is None or tensor.shape != base.tensors[name].shape:
                raise BadInput(f"{merged_gguf} does not hold the tensor {name} of the base; it is another model.")
            exact = exact and tensor.type_name in EXACT
            inner, norm = _products(base, merged, name, change.products)
            shares[name] = inner / norm if norm else 1.0
            above, below = above + inner, below + norm
    return Merge(above / below if below else 1.0, shares, exact) if shares else None


def _products(
    base: GgufFile, merged: GgufFile, name: str, pairs: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[float, float]:
    """<merged - base, change> and <change, change> over evenly spread blocks of rows."""
    tensor = base.tensors[name]
    block = min(tensor.rows, 32)
    count = max(1, min(ROWS, tensor.rows) // block)
    starts = np.unique(np.linspace(0, tensor.rows - block, count).astype(int))
    inner = norm = 0.0
    for start in starts:
        first = int(start)
        wanted = sum(b[first : first + block].astype(np.float64) @ a.astype(np.float64) for a, b in pairs)
        found = merged.rows(merged.tensors[name], first, block).astype(np.float64) - base.rows(tensor, first, block)
        inner += float((found * wanted).sum())
        norm += float((wanted * wanted).sum()) if isinstance(wanted, np.ndarray) else 0.0
    return inner, norm
