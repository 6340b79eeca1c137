"""What a fine-tune does to each tensor of the base GGUF, in GGUF's layout, computable for any block of rows.

A merge never needs a whole tensor in memory: every change here can be applied to rows ``first .. first + n``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bc250studio.errors import BadInput, clean
from bc250studio.export.adapter import find_targets, served_matrices
from bc250studio.export.peft_adapter import PeftAdapter
from bc250studio.models.gguf_file import GgufFile, Tensor
from bc250studio.models.gguf_map import ALWAYS_TIED, Place, TensorMap, permute
from bc250studio.models.safetensors_file import SafetensorsFile

HEAD, EMBEDDING = "output.weight", "token_embd.weight"


@dataclass(frozen=True)
class Segment:
    """Rows of a GGUF tensor that are replaced: ``rows`` (a slice of the tensor) by stored rows ``source``."""

    first: int
    count: int
    weights: SafetensorsFile
    stored: str
    source: np.ndarray
    shift: float = 0.0


@dataclass
class Change:
    """The new rows of one tensor. Order: base rows, replaced rows, plus the products, DoRA's magnitudes, bias."""

    segments: list[Segment] = field(default_factory=list)
    products: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    magnitude: np.ndarray | None = None
    addend: np.ndarray | None = None

    def replaces(self, first: int, count: int) -> bool:
        """Do the segments cover all of these rows, so that the base's need not be read?"""
        return any(s.first <= first and first + count <= s.first + s.count for s in self.segments)

    def apply(self, rows: np.ndarray, first: int) -> np.ndarray:
        """``rows`` float32 [n, columns], which are rows ``first ...`` of the tensor; changed in place and returned.

        Raises:
            BadInput: a value is not a finite number.
        """
        last = first + rows.shape[0]
        for segment in self.segments:
            begin, end = max(first, segment.first), min(last, segment.first + segment.count)
            if begin < end:
                picked = segment.source[begin - segment.first : end - segment.first]
                rows[begin - first : end - first] = _stored(segment, picked, rows.shape[1])
        for a, b in self.products:
            rows += b[first:last] @ a
        if self.magnitude is not None:
            norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
            with np.errstate(divide="ignore", invalid="ignore"):
                rows *= (self.magnitude[first:last] / norms).astype(np.float32)[:, None]
        if self.addend is not None:
            rows += self.addend.reshape(-1, rows.shape[1])[first:last]
        if not np.isfinite(rows).all():
            raise BadInput("The merged weights are not finite numbers: the training broke; use an earlier checkpoint.")
        return rows


def _stored(segment: Segment, picked: np.ndarray, columns: int) -> np.ndarray:
    shape = segment.weights.shape(segment.stored)
    if len(shape) == 1:
        rows = segment.weights.read(segment.stored)[picked.reshape(-1)].reshape(-1, columns)
    else:
        rows = segment.weights.rows(segment.stored, picked)
    return rows + np.float32(segment.shift) if segment.shift else rows


@dataclass
class Plan:
    """Changes by tensor name, tensors that the base does not have, and the vocabulary when tokens were added."""

    changes: dict[str, Change]
    added: dict[str, Tensor]
    copied_from: dict[str, str]
    vocabulary: int | None = None

    def change(self, name: str) -> Change:
        """The change of a tensor, made on first use."""
        return self.changes.setdefault(name, Change())


def plan_adapter(adapter: PeftAdapter, base: GgufFile) -> Plan:
    """The changes of a PEFT adapter of any kind.

    Raises:
        BadInput: something in the adapter has no place in the base; names it.
    """
    mapping = TensorMap.from_gguf(base)
    plan = Plan({}, {}, {})
    tied = HEAD not in base.tensors
    touches_head = any(name.startswith("lm_head.") for name in adapter.whole) or "lm_head" in adapter.pairs
    grown = _grown(adapter, base, mapping)
    own_embedding = any(_is_embedding(mapping, name) for name in (*adapter.pairs, *_trained_whole(adapter)))
    parts_embedding = own_embedding and not adapter.config.get("ensure_weight_tying")
    if tied and grown and parts_embedding and not touches_head:
        raise BadInput(
            f"{clean(adapter.folder)} adds tokens and trains their embedding, but not the output that is tied to it, "
            "so the output of the new tokens is missing; train with ensure_weight_tying or lm_head in modules_to_save."
        )
    if tied and (touches_head or parts_embedding):
        _untie(plan, base, adapter)
    _add_whole(plan, base, mapping, adapter.weights, _changed_whole(adapter, grown), str(adapter.folder))
    _add_tokens(plan, adapter, base, mapping, tied)
    _add_pairs(plan, adapter, base)
    _add_biases(plan, adapter, base, mapping)
    plan.vocabulary = grown
    return plan


def plan_full(weights: SafetensorsFile, base: GgufFile, where: str) -> Plan:
    """The changes of a full fine-tune: every tensor is replaced by the one in the model's folder."""
    mapping = TensorMap.from_gguf(base)
    plan = Plan({}, {}, {})
    names = {name: name for name in weights.names if not name.endswith("inv_freq")}
    if HEAD not in base.tensors:
        names.pop("lm_head.weight", None)
    _add_whole(plan, base, mapping, weights, names, where)
    missing = [n for n in base.tensors if n not in plan.changes and not n.startswith("rope_")]
    if missing:
        raise BadInput(f"{clean(where)} has no weights for {len(missing)} tensors of the base, first {missing[0]}.")
    return plan


def _trained_whole(adapter: PeftAdapter) -> list[str]:
    """Modules of ``modules_to_save``, as opposed to weights that PEFT stored only because the vocabulary grew."""
    saved = adapter.config.get("modules_to_save") or []
    return [
        name.removesuffix(".weight")
        for name, stored in adapter.whole.items()
        if ".base_layer." not in stored and any(f".{module}." in f".{name}" for module in saved)
    ]


def _is_embedding(mapping: TensorMap, module: str) -> bool:
    place = mapping.place(module + ".weight")
    return place is not None and place.name == EMBEDDING


def _grown(adapter: PeftAdapter, base: GgufFile, mapping: TensorMap) -> int | None:
    """New size of the vocabulary when the adapter carries an embedding with more rows than the base."""
    for name, stored in adapter.whole.items():
        if name.endswith(".weight") and _is_embedding(mapping, name.removesuffix(".weight")):
            rows = adapter.weights.shape(stored)[0]
            if rows > base.tensors[EMBEDDING].shape[0]:
                return rows
            if rows < base.tensors[EMBEDDING].shape[0] and ".base_layer." not in stored:
                raise BadInput(
                    f"{clean(adapter.folder)} holds an embedding of {rows} tokens, the base has "
                    f"{base.tensors[EMBEDDING].shape[0]}; it belongs to another model."
                )
    return None


def _changed_whole(adapter: PeftAdapter, grown: int | None) -> dict[str, str]:
    """Untouched weights that PEFT stores beside adapted embeddings count only when the vocabulary grew."""
    return {n: s for n, s in adapter.whole.items() if grown or ".base_layer." not in s or n.endswith(".bias")}


def _untie(plan: Plan, base: GgufFile, adapter: PeftAdapter) -> None:
    """Give the output its own tensor, a copy of the embedding, because the fine-tune parts the two."""
    if base.arch in ALWAYS_TIED:
        raise BadInput(
            f"{clean(adapter.folder)} changes the embedding or the output alone, but llama.cpp has only one tensor for "
            f"both in {base.arch} models; this adapter cannot be exported."
        )
    embedding = base.tensors[EMBEDDING]
    plan.added[HEAD] = Tensor(
        HEAD, embedding.shape, embedding.type, embedding.offset, embedding.size_bytes, embedding.part
    )
    plan.copied_from[HEAD] = EMBEDDING


def _add_whole(
    plan: Plan, base: GgufFile, mapping: TensorMap, weights: SafetensorsFile, names: dict[str, str], where: str
) -> None:
    for name, stored in names.items():
        place = mapping.place(name)
        known = place is not None and all(part in base.tensors or part in plan.added for part in place.names)
        if place is None or not known:
            raise BadInput(
                f"{clean(where)} holds {clean(name, 120)}, for which {clean(base.path.name)} has no tensor; "
                "it cannot be exported for this base."
            )
        _replace(plan, base, place, weights, stored, where)


def _replace(plan: Plan, base: GgufFile, place: Place, weights: SafetensorsFile, stored: str, where: str) -> None:
    shape = weights.shape(stored)
    for number, part in enumerate(place.names):
        tensor = plan.added.get(part) or base.tensors[part]
        expected = tensor.shape[1:] if place.expert is not None else tensor.shape
        if len(place.names) > 1:
            expected = (*expected[: place.axis], expected[place.axis] * len(place.names), *expected[place.axis + 1 :])
        grows = part in (EMBEDDING, HEAD) and shape[1:] == expected[1:] and shape[0] > expected[0]
        if shape != expected and not grows:
            raise BadInput(
                f"{clean(where)}: {clean(stored, 120)} is {' x '.join(map(str, shape))}, but the base's is "
                f"{' x '.join(map(str, expected))}; it belongs to another model."
            )
        if len(shape) == 1:
            index = np.arange(shape[0])
            index = permute(index, place.heads) if place.heads else index
            plan.change(part).segments.append(Segment(0, 1, weights, stored, index.reshape(1, -1), place.shift))
            continue
        rows = np.arange(int(np.prod(shape[:-1]))).reshape(shape[:-1])
        if len(place.names) > 1:
            rows = np.split(rows, len(place.names), axis=place.axis)[number]
        rows = rows.reshape(-1)
        if place.heads:
            rows = permute(rows, place.heads)
        first = place.expert * len(rows) if place.expert is not None else 0
        plan.change(part).segments.append(Segment(first, len(rows), weights, stored, rows, place.shift))


def _add_tokens(plan: Plan, adapter: PeftAdapter, base: GgufFile, mapping: TensorMap, tied: bool) -> None:
    for module, stored in adapter.tokens.items():
        place = mapping.place(module + ".weight")
        names = [place.name] if place else []
        if place and place.name == HEAD and tied:
            names = []
        if place and place.name == EMBEDDING and HEAD in plan.added:
            names.append(HEAD)
        indices = adapter.token_indices(module)
        shape = adapter.weights.shape(stored)
        if not names or len(shape) != 2 or shape[0] != len(indices) or shape[1:] != base.tensors[EMBEDDING].shape[1:]:
            raise BadInput(
                f"{clean(adapter.folder)} trains tokens of {clean(module, 120)} in a form that is not known here."
            )
        for name in names:
            for row, index in enumerate(indices):
                if index >= base.tensors[EMBEDDING].shape[0]:
                    raise BadInput(f"{clean(adapter.folder)} trains token {index}, which the base does not have.")
                plan.change(name).segments.append(Segment(index, 1, adapter.weights, stored, np.array([row])))


def _add_pairs(plan: Plan, adapter: PeftAdapter, base: GgufFile) -> None:
    for target in find_targets(adapter, base, plan.added):
        a, b = served_matrices(adapter, target, alpha=float(target.pair.rank))
        change = plan.change(target.tensor.name)
        if target.pair.embedding:
            a, b = b.T, a
        change.products.append((np.ascontiguousarray(a), np.ascontiguousarray(b)))
        magnitude = adapter.magnitudes.get(target.pair.module)
        if magnitude is None:
            continue
        values = adapter.weights.read(magnitude).reshape(-1)
        if target.pair.embedding or len(values) != target.tensor.rows:
            raise BadInput(
                f"{clean(adapter.folder)} uses DoRA on {clean(target.pair.module, 120)}, which cannot be merged here; "
                "leave it out of adapter.targets."
            )
        change.magnitude = permute(values, target.place.heads) if target.place.heads else values


def _add_biases(plan: Plan, adapter: PeftAdapter, base: GgufFile, mapping: TensorMap) -> None:
    for module, stored in adapter.lora_biases.items():
        place = mapping.place(module + ".bias")
        pair = adapter.pairs.get(module)
        if place is None or pair is None or place.name not in base.tensors:
            raise BadInput(
                f"{clean(adapter.folder)} trains a bias on {clean(module, 120)}, which has none in the base; this "
                "cannot be exported. Train with lora_bias off."
            )
        values = adapter.weights.read(stored).reshape(-1) * np.float32(pair.scale)
        if len(values) != base.tensors[place.name].elements:
            raise BadInput(
                f"{clean(adapter.folder)}: the bias of {clean(module, 120)} has another size than the base's."
            )
        plan.change(place.name).addend = permute(values, place.heads) if place.heads else values
