"""PEFT adapter -> GGUF adapter for llama.cpp, exact for every LoRA whose change is scale * B @ A.

llama.cpp applies ``alpha / rank * B @ A`` with one alpha for the whole file and the rank of each tensor. PEFT's
scale may differ by module (rsLoRA, ``alpha_pattern``), so each B is multiplied by
``PEFT's scale * rank / alpha`` where that is not 1; the adapter on disk stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bc250studio.errors import BadInput, clean
from bc250studio.export.exported import Exported, measure
from bc250studio.export.gguf_write import Fields, GgufWriter, Slot
from bc250studio.export.numbers import ADAPTER_TYPES, F16, FILE_TYPE, Q8_0, encode
from bc250studio.export.peft_adapter import Pair, PeftAdapter, read_adapter
from bc250studio.export.rules import route_adapter
from bc250studio.models.describe import describe
from bc250studio.models.find import ModelSource
from bc250studio.models.gguf_file import F32 as FLOAT
from bc250studio.models.gguf_file import STRING, U32, GgufFile, Tensor
from bc250studio.models.gguf_map import Place, TensorMap, permute


@dataclass(frozen=True)
class Target:
    """A pair and the tensor of the base that it changes."""

    pair: Pair
    place: Place
    tensor: Tensor


def write_adapter(
    adapter_dir: Path, source: ModelSource, out: Path, outtype: str = "f32", base_gguf: Path | None = None
) -> Exported:
    """Write the adapter in ``adapter_dir`` as a GGUF adapter of type ``outtype`` (f32, f16, bf16, q8_0).

    ``base_gguf``: the file that will be served with it; checked tensor by tensor. Without it ``source.gguf`` is used.

    Raises:
        BadInput: it cannot be an adapter (says why), or does not fit the base (names the tensor).
        JobFailed: the disk is full or not writable.
    """
    adapter = read_adapter(adapter_dir)
    base = base_gguf or source.gguf
    if base is None:
        raise BadInput(f"The GGUF file of {clean(source.name)} is needed to write an adapter for it; set model.gguf.")
    with GgufFile(base) as file:
        description = describe(source)
        found = route_adapter(adapter, description, vocabulary_of(file))
        if found.kind != "adapter":
            raise BadInput(
                f"{clean(adapter.folder)} cannot be an adapter file: {'; '.join(found.reasons)}. "
                "Export it with --kind merged."
            )
        return write_pairs(adapter, file, source.name, out, outtype)


def write_pairs(adapter: PeftAdapter, base: GgufFile, base_name: str, out: Path, outtype: str = "f32") -> Exported:
    """The writing itself: every pair of ``adapter``, laid out for ``base``."""
    if outtype not in ADAPTER_TYPES:
        raise BadInput(f"An adapter can be f32, f16, bf16 or q8_0, not {clean(outtype, 40)!r}.")
    targets = find_targets(adapter, base)
    alpha = global_alpha(adapter)
    wanted = ADAPTER_TYPES[outtype]
    slots = []
    for target in targets:
        pair, rows, columns = target.pair, target.tensor.rows, target.tensor.columns
        a_shape = (rows, pair.rank) if pair.embedding else (pair.rank, columns)
        b_shape = (columns if pair.embedding else rows, pair.rank)
        slots += [_slot(target, "lora_a", a_shape, wanted), _slot(target, "lora_b", b_shape, wanted)]
    fields = Fields()
    fields.put("general.architecture", STRING, base.arch)
    fields.put("general.type", STRING, "adapter")
    fields.put("general.name", STRING, f"{_short(adapter.folder.name)} for {_short(base_name)}")
    fields.put("general.file_type", U32, FILE_TYPE[outtype])
    fields.put("general.quantization_version", U32, 2)
    fields.put("general.base_model.count", U32, 1)
    fields.put("general.base_model.0.name", STRING, str(base.get("general.name") or _short(base_name)))
    fields.put("adapter.type", STRING, "lora")
    fields.put("adapter.lora.alpha", FLOAT, alpha)
    with GgufWriter(out, fields, slots) as writer:
        for target in targets:
            a, b = served_matrices(adapter, target, alpha)
            for side, matrix in (("lora_a", a), ("lora_b", b)):
                name = f"{target.tensor.name}.{side}"
                writer.write(name, encode(matrix, writer.slots[name].type))
    return measure(out, "adapter")


def find_targets(adapter: PeftAdapter, base: GgufFile, added: Mapping[str, Tensor] | None = None) -> list[Target]:
    """Each pair with its tensor in the base (or among tensors ``added`` to it by a merge), in the adapter's order.

    Raises:
        BadInput: a module that the base does not have, or of another size.
    """
    mapping = TensorMap.from_gguf(base)
    known = {**base.tensors, **(added or {})}
    targets = []
    for pair in adapter.pairs.values():
        place = mapping.place(pair.module + ".weight")
        tied_head = place is not None and place.name == "output.weight" and place.name not in known
        if place is None or tied_head or len(place.names) > 1 or place.expert is not None:
            raise BadInput(
                f"{clean(adapter.folder)} changes {clean(pair.module, 120)}, which has no tensor of its own in "
                f"{clean(base.path.name)}; leave it out of adapter.targets."
            )
        tensor = known.get(place.name)
        if tensor is None:
            raise BadInput(
                f"{clean(base.path)} has no tensor {place.name} for the adapter's {clean(pair.module, 120)}; "
                "is it the model that the adapter was trained on?"
            )
        a, b = adapter.weights.shape(pair.a), adapter.weights.shape(pair.b)
        change = (a[1], b[0]) if pair.embedding else (b[0], a[1])
        if len(tensor.shape) != 2 or change != tensor.shape:
            raise BadInput(
                f"The adapter's {clean(pair.module, 120)} is made for a {change[0]} x {change[1]} matrix, but "
                f"{place.name} in {clean(base.path.name)} is {' x '.join(map(str, tensor.shape))}; "
                "it was trained on another model."
            )
        targets.append(Target(pair, place, tensor))
    return targets


def global_alpha(adapter: PeftAdapter) -> float:
    """The alpha written in the file. Never 0: llama.cpp reads 0 as "no scaling"."""
    alpha = float(adapter.config["lora_alpha"])
    return alpha if np.isfinite(np.float32(alpha)) and np.float32(alpha) != 0 else 1.0


def served_matrices(adapter: PeftAdapter, target: Target, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """A and B as llama.cpp wants them: scale folded into B, rows permuted, A of an embedding transposed.

    Raises:
        BadInput: a value is not a number (a broken training).
    """
    a, b = adapter.matrices(target.pair)
    for matrix in (a, b):
        if not np.isfinite(matrix).all():
            raise BadInput(
                f"The adapter's {clean(target.pair.module, 120)} holds values that are not finite numbers: the "
                "training broke before it was saved; use an earlier checkpoint."
            )
    factor = target.pair.scale * target.pair.rank / float(np.float32(alpha))
    if factor != 1.0:
        b = (b.astype(np.float64) * factor).astype(np.float32)
    if target.place.heads:
        b = permute(b, target.place.heads)
    return (np.ascontiguousarray(a.T) if target.pair.embedding else a), b


def vocabulary_of(base: GgufFile) -> int:
    """Rows of the token embedding."""
    tensor = base.tensors.get("token_embd.weight")
    if tensor is None:
        raise BadInput(f"{clean(base.path)} has no token embedding; it is not a language model.")
    return tensor.shape[0]


def _slot(target: Target, side: str, shape: tuple[int, int], wanted: int) -> Slot:
    """A row that does not divide into blocks of 32 (the rank, mostly) is stored as f16, as llama.cpp does."""
    kind = F16 if wanted == Q8_0 and shape[1] % 32 else wanted
    return Slot(f"{target.tensor.name}.{side}", shape, kind)


def _short(name: str) -> str:
    return clean(name.rstrip("/").rpartition("/")[2] or name, 100)
