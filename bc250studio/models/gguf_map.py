"""Names and layouts of a model's tensors: transformers' on one side, llama.cpp's (GGUF) on the other.

Three things differ between the two and each is silent when it is forgotten:

- **Rotary layout.** transformers pairs entry i of a head with entry i + d/2; llama.cpp's "normal" rotary pairs
  2i with 2i + 1. Its converter therefore reorders the rows of q and k (weights and biases) for the families in
  :data:`PERMUTED`; the others use llama.cpp's "neox" rotary, where nothing moves.
  (Source: ``permute`` in llama.cpp's converter and ``llama_model_rope_type``.)
- **Norms of Gemma** hold weight + 1 in the file.
- **Experts** are stacked: transformers 5 joins gate and up in one tensor, GGUF has one stacked tensor for each.

numpy only; used by training (to load the served file's own weights), by export, and by the tests' writer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bc250studio.errors import BadInput, clean

if TYPE_CHECKING:
    from bc250studio.models.gguf_file import GgufFile

PERMUTED = frozenset({"llama", "smollm3", "granite", "arcee", "olmo"})
"""llama.cpp architectures whose q and k rows are reordered. Each was compared with transformers through a server."""
PLAIN = frozenset(
    {"qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma", "gemma2", "gemma3", "phi3", "olmo2", "starcoder2", "seed_oss",
     "exaone4", "hunyuan-dense", "stablelm"}
)  # fmt: skip
"""llama.cpp architectures whose q and k rows stay as they are."""
SHIFTED_NORMS = frozenset({"gemma", "gemma2", "gemma3"})
"""The file's norm is the model's norm + 1."""
ALWAYS_TIED = frozenset({"gemma", "gemma2"})
"""llama.cpp reads no output.weight for these; logits always come from the token embedding."""
KNOWN = PERMUTED | PLAIN

_QK = re.compile(r"\.self_attn\.([qk])_proj\.(weight|bias)$")
_EXPERT = re.compile(r"^model\.layers\.(\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight$")
_EXPERTS = re.compile(r"^model\.layers\.(\d+)\.(?:mlp|block_sparse_moe)\.experts\.(gate_up_proj|down_proj)$")
_EXPERT_PARTS = {
    "w1": "ffn_gate_exps", "gate_proj": "ffn_gate_exps", "w3": "ffn_up_exps", "up_proj": "ffn_up_exps",
    "w2": "ffn_down_exps", "down_proj": "ffn_down_exps",
}  # fmt: skip


def permuted(arch: str, hf_name: str) -> bool:
    """Are the rows of this tensor (q or k, weight or bias) reordered in a GGUF file of ``arch``?"""
    return arch in PERMUTED and bool(_QK.search(hf_name))


def permute(array: np.ndarray, heads: int) -> np.ndarray:
    """transformers' row order -> llama.cpp's. ``array`` [heads * d, ...]; rows of each head are interleaved.

    Raises:
        BadInput: the rows do not divide into ``heads`` heads of an even size.
    """
    grouped = array.reshape(heads, 2, _half(array, heads), *array.shape[1:])
    return np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(array.shape)


def unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's row order -> transformers'; the inverse of :func:`permute`."""
    grouped = array.reshape(heads, _half(array, heads), 2, *array.shape[1:])
    return np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(array.shape)


def _half(array: np.ndarray, heads: int) -> int:
    if heads < 1 or array.shape[0] % (2 * heads):
        raise BadInput(f"{array.shape[0]} rows of q or k cannot be split into {heads} heads of an even size.")
    return array.shape[0] // heads // 2


@dataclass(frozen=True)
class Place:
    """Where a transformers tensor lives in a GGUF file.

    ``names``: one GGUF tensor, or two joined along ``axis`` in transformers' tensor (fused experts).
    ``heads`` > 0: rows permuted for that many heads. ``shift``: the file holds the value + shift.
    ``expert``: the tensor is this slice of a stacked GGUF tensor.
    """

    names: tuple[str, ...]
    axis: int = 0
    heads: int = 0
    shift: float = 0.0
    expert: int | None = None

    @property
    def name(self) -> str:
        """The GGUF tensor, where there is one."""
        return self.names[0]

    def to_hf(self, read: Callable[[str], np.ndarray]) -> np.ndarray:
        """The transformers tensor, from ``read(gguf name) -> float32 array``."""
        parts = [read(name) for name in self.names]
        array = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=self.axis)
        if self.expert is not None:
            array = array[self.expert]
        if self.heads:
            array = unpermute(array, self.heads)
        return array - np.float32(self.shift) if self.shift else array

    def to_gguf(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """GGUF name -> array, from the transformers tensor (an ``expert`` slice is returned as a slice)."""
        if self.shift:
            array = array + array.dtype.type(self.shift)
        if self.heads:
            array = permute(array, self.heads)
        if len(self.names) == 1:
            return {self.names[0]: array}
        return dict(zip(self.names, np.split(array, len(self.names), axis=self.axis), strict=True))


class TensorMap:
    """The map for one model: architecture (llama.cpp's name), layers, query heads, key/value heads."""

    def __init__(self, arch: str, layers: int, heads: int, kv_heads: int) -> None:
        check_known(arch)
        self.arch, self.layers, self.heads, self.kv_heads = arch, layers, heads, kv_heads

    @classmethod
    def from_gguf(cls, file: GgufFile) -> TensorMap:
        """The map of an open GGUF file.

        Raises:
            BadInput: an architecture that is not known here, or metadata that makes no sense.
        """
        layers, heads = file.arch_get("block_count"), file.arch_get("attention.head_count")
        kv_heads = file.arch_get("attention.head_count_kv", heads)
        check_known(file.arch)
        if not all(isinstance(n, int) and n > 0 for n in (layers, heads, kv_heads)):
            raise BadInput(f"{clean(file.path)} does not say how many layers and heads it has.")
        return cls(file.arch, layers, heads, kv_heads)

    def place(self, hf_name: str) -> Place | None:
        """Where transformers' tensor ``hf_name`` (with ``.weight`` or ``.bias``) lives; None when nowhere."""
        name = canonical(hf_name)
        if fused := _EXPERTS.match(name):
            layer, part = fused.groups()
            if part == "down_proj":
                return Place((f"blk.{layer}.ffn_down_exps.weight",))
            return Place((f"blk.{layer}.ffn_gate_exps.weight", f"blk.{layer}.ffn_up_exps.weight"), axis=1)
        if single := _EXPERT.match(name):
            layer, expert, part = single.groups()
            stacked = _EXPERT_PARTS.get(part)
            return Place((f"blk.{layer}.{stacked}.weight",), expert=int(expert)) if stacked else None
        if name == "lm_head.weight":
            return Place(("output.weight",))
        gguf_name = _names(self.arch, self.layers).get_name(name, try_suffixes=(".weight", ".bias"))
        if gguf_name is None:
            return None
        heads = 0
        if permuted(self.arch, name):
            heads = self.heads if ".q_proj." in name else self.kv_heads
        shift = 1.0 if self.arch in SHIFTED_NORMS and name.endswith("norm.weight") else 0.0
        return Place((gguf_name,), heads=heads, shift=shift)


def check_known(arch: str) -> None:
    """Refuse an architecture whose layout is not known here.

    Raises:
        BadInput: says so, instead of writing a file that loads and is silently wrong.
    """
    if arch not in KNOWN:
        raise BadInput(
            f"Models of the architecture {clean(arch, 40)!r} cannot be mapped to GGUF here yet: the row layout of "
            f"their attention is not known to this version (known: {', '.join(sorted(KNOWN))})."
        )


def canonical(hf_name: str) -> str:
    """The name without wrappers: a text model inside a vision model is called as if it stood alone."""
    name = hf_name.removeprefix("base_model.model.")
    for wrapped, plain in (("model.language_model.", "model."), ("language_model.model.", "model."),
                           ("language_model.lm_head.", "lm_head."), ("model.model.", "model.")):  # fmt: skip
        if name.startswith(wrapped):
            return plain + name[len(wrapped) :]
    return name


def read_model(file: GgufFile, hf_names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
    """The transformers tensors ``hf_names`` from a GGUF file, dequantised to float32, in transformers' layout.

    ``lm_head.weight`` of a file without ``output.weight`` is the token embedding. Buffers that no GGUF file
    holds (rotary frequencies) are passed over.

    Raises:
        BadInput: a tensor is missing, names it.
    """
    mapping = TensorMap.from_gguf(file)
    for hf_name in hf_names:
        if hf_name.endswith("inv_freq"):
            continue
        place = mapping.place(hf_name)
        if place is not None and place.name == "output.weight" and "output.weight" not in file.tensors:
            place = Place(("token_embd.weight",))
        if place is None or any(name not in file.tensors for name in place.names):
            raise BadInput(f"{clean(file.path)} holds no tensor for {clean(hf_name, 120)}; is it a GGUF of this model?")
        yield hf_name, place.to_hf(file.array)


@cache
def _names(arch: str, layers: int) -> Any:
    import gguf

    by_name = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    return gguf.get_tensor_name_map(by_name[arch], layers)
