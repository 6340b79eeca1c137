"""Reading ``reference.safetensors``: what torch says the next tokens should be, written before the server starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bc250studio.errors import BadInput, clean

ADAPTER, BASE, TRAINED, MERGED = "served_adapter", "served_base", "trained_adapter", "merged_file"
WIDTH = 64


@dataclass(frozen=True)
class Variant:
    """The likeliest tokens at each position, best first: ``ids`` int32 [P, 64], ``logp`` float32 [P, 64] in nats."""

    ids: np.ndarray
    logp: np.ndarray


@dataclass(frozen=True)
class Reference:
    """Token sequences and, for P positions in them, the next token's distribution under each variant.

    ``ids`` int32 [T], ``offsets`` int64 [S + 1]; position p of sequence s asks for
    ``ids[offsets[s] + p]`` given the tokens before it. Positions are in reading order.
    """

    ids: np.ndarray
    offsets: np.ndarray
    sequence: np.ndarray
    position: np.ndarray
    variants: dict[str, Variant]
    facts: dict[str, Any]

    @property
    def count(self) -> int:
        """P, the number of positions."""
        return len(self.position)

    def prompt(self, index: int) -> list[int]:
        """The tokens before position ``index``."""
        begin = int(self.offsets[self.sequence[index]])
        return [int(token) for token in self.ids[begin : begin + int(self.position[index])]]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return int(self.position.max()) if self.count else 0


def read_reference(path: Path) -> Reference:
    """Read and check a reference.

    Raises:
        BadInput: missing, damaged, or its arrays do not fit together.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            metadata = file.metadata() or {}
    except FileNotFoundError as error:
        raise BadInput(f"{path} is missing; it is written by the reference stage, before the server starts.") from error
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise BadInput(f"{path} is damaged ({clean(error, 120)}); write it again with the reference stage.") from error
    try:
        facts = json.loads(metadata.get("facts", "{}"))
    except ValueError:
        facts = {}
    try:
        return _checked(path, arrays, facts if isinstance(facts, dict) else {})
    except KeyError as error:
        raise BadInput(f"{path} holds no {error.args[0]!r}; write it again with the reference stage.") from error


def _checked(path: Path, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> Reference:
    ids, offsets = arrays["ids"], arrays["offsets"]
    sequence, position = arrays["sequence"], arrays["position"]
    names = [name.removesuffix(".ids") for name in arrays if name.endswith(".ids")]
    variants = {name: Variant(arrays[f"{name}.ids"], arrays[f"{name}.logp"]) for name in names}
    whole = (
        ids.ndim == offsets.ndim == sequence.ndim == position.ndim == 1
        and len(offsets) >= 2
        and int(offsets[0]) == 0
        and int(offsets[-1]) == len(ids)
        and bool((np.diff(offsets) >= 0).all())
        and len(sequence) == len(position) > 0
        and bool(((sequence >= 0) & (sequence < len(offsets) - 1)).all())
        and all(v.ids.shape == v.logp.shape and v.ids.shape[:1] == position.shape for v in variants.values())
        and all(v.ids.ndim == 2 and v.ids.shape[1] >= 2 for v in variants.values())
        and all(bool(np.isfinite(v.logp).all()) and bool((v.logp <= 1e-3).all()) for v in variants.values())
    )
    if whole:
        lengths = np.diff(offsets)[sequence]
        whole = bool(((position >= 1) & (position < lengths)).all())
    if not whole:
        raise BadInput(f"{path} does not fit together; write it again with the reference stage.")
    order = np.lexsort((position, sequence))
    variants = {name: Variant(v.ids[order], v.logp[order]) for name, v in variants.items()}
    return Reference(ids, offsets, sequence[order], position[order], variants, facts)
