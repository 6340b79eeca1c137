"""Which number type each tensor gets in a quantised file: llama.cpp's mixes, written from its rules.

A name such as Q4_K_M is a recipe, not a type: sensitive tensors get more bits, and a row length that does not divide
into a type's blocks makes it fall back to another type. The facts are those of ``llama_tensor_get_type`` and
``tensor_type_fallback`` in llama.cpp's src/llama-quant.cpp; a test compares the result with its own quantiser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as T

from bc250studio.errors import BadInput, clean, nearest
from bc250studio.models.gguf_file import GgufFile, Tensor


@dataclass(frozen=True)
class Recipe:
    """A whole-file quantisation: its label, llama.cpp's file type number, and the type most tensors get."""

    label: str
    file_type: int
    default: T


RECIPES = {
    recipe.label.lower(): recipe
    for recipe in (
        Recipe("F32", 0, T.F32), Recipe("F16", 1, T.F16), Recipe("BF16", 32, T.BF16),
        Recipe("Q4_0", 2, T.Q4_0), Recipe("Q4_1", 3, T.Q4_1), Recipe("Q8_0", 7, T.Q8_0), Recipe("Q5_0", 8, T.Q5_0),
        Recipe("Q5_1", 9, T.Q5_1), Recipe("Q2_K", 10, T.Q2_K), Recipe("Q2_K_S", 21, T.Q2_K),
        Recipe("Q3_K_S", 11, T.Q3_K), Recipe("Q3_K_M", 12, T.Q3_K), Recipe("Q3_K_L", 13, T.Q3_K),
        Recipe("Q4_K_S", 14, T.Q4_K), Recipe("Q4_K_M", 15, T.Q4_K), Recipe("Q5_K_S", 16, T.Q5_K),
        Recipe("Q5_K_M", 17, T.Q5_K), Recipe("Q6_K", 18, T.Q6_K), Recipe("IQ4_NL", 25, T.IQ4_NL),
        Recipe("IQ4_XS", 30, T.IQ4_XS),
    )
}  # fmt: skip
"""Lower-case name -> recipe."""
_ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "fp16": "f16", "fp32": "f32"}
_FALLBACK = {
    T.Q2_K: T.Q4_0, T.Q3_K: T.Q4_0, T.Q4_K: T.Q5_0, T.Q5_K: T.Q5_1, T.Q6_K: T.Q8_0, T.IQ4_XS: T.IQ4_NL,
}  # fmt: skip
_KEPT_PARTS = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
    ".position_embd", ".rel_pos", ".patch_embd", ".patch_merger",
)  # fmt: skip
_KEPT_NAMES = ("position_embd.weight", "token_types.weight")


def recipe_named(name: str) -> Recipe:
    """The recipe a user means.

    Raises:
        BadInput: there is none of that name; gives the nearest.
    """
    key = name.strip().lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    if key not in RECIPES:
        raise BadInput(
            f"No quantisation {clean(name, 40)!r}; there are {', '.join(RECIPES)}.{nearest(key, [*RECIPES, *_ALIASES])}"
        )
    return RECIPES[key]


def label_of(file: GgufFile) -> str:
    """What a file calls itself: the recipe of its ``general.file_type``, else its most frequent matrix type."""
    number = file.get("general.file_type")
    for recipe in RECIPES.values():
        if recipe.file_type == number:
            return recipe.label
    kinds = [tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1]
    return T(max(set(kinds), key=kinds.count)).name if kinds else "F32"


def in_order(names: Iterable[str]) -> list[str]:
    """llama.cpp's order of tensors: those outside the layers first, then layer by layer, each by name."""

    def key(name: str) -> tuple[int, str]:
        match = re.match(r"blk\.(\d+)\.", name)
        return (int(match[1]) if match else -1, name)

    return sorted(names, key=key)


def quantisable(tensor: Tensor) -> bool:
    """Does llama.cpp change this tensor's type at all? Norms, biases and a few small ones stay."""
    name = tensor.name
    if not name.endswith("weight") or name in _KEPT_NAMES:
        return False
    return _dims(tensor) >= 2 and not any(part in name for part in _KEPT_PARTS)


def choose_types(
    file: GgufFile, tensors: Iterable[Tensor], recipe: Recipe, with_importance: bool = False
) -> tuple[dict[str, T], list[str]]:
    """Tensor name -> type for a file with these ``tensors`` (base's, plus any that the merge adds).

    Also returns the names of tensors that had to fall back because of their row length.
    """
    listed = {tensor.name: tensor for tensor in tensors}
    state = _State(file, recipe, listed, with_importance)
    types: dict[str, T] = {}
    fallen: list[str] = []
    for name in in_order(listed):
        tensor = listed[name]
        if not quantisable(tensor):
            types[name] = T(tensor.type)
            continue
        chosen = recipe.default
        if GGML_QUANT_SIZES[chosen][0] > 1:
            chosen = state.choose(tensor)
            fitted = _fit(chosen, tensor.columns)
            if fitted != chosen:
                fallen.append(name)
            chosen = fitted
        types[name] = chosen
    return types, fallen


def _dims(tensor: Tensor) -> int:
    """ggml's count of dimensions: trailing ones (numpy's leading) do not count."""
    shape = list(tensor.shape)
    while len(shape) > 1 and shape[0] == 1:
        shape.pop(0)
    return len(shape)


def _fit(kind: T, columns: int) -> T:
    if columns % GGML_QUANT_SIZES[kind][0] == 0:
        return kind
    smaller = _FALLBACK.get(kind)
    if smaller is None or columns % GGML_QUANT_SIZES[smaller][0]:
        return T.F16
    return smaller


def _more_bits(layer: int, layers: int) -> bool:
    """First and last eighth of the layers, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


class _State:
    """The counters that the recipe keeps while it walks through the tensors in order."""

    def __init__(self, file: GgufFile, recipe: Recipe, listed: dict[str, Tensor], with_importance: bool) -> None:
        heads, kv_heads = file.arch_get("attention.head_count", 1), file.arch_get("attention.head_count_kv")
        heads = heads[0] if isinstance(heads, list) else heads
        kv_heads = kv_heads[0] if isinstance(kv_heads, list) else kv_heads or heads
        self.recipe, self.label = recipe, recipe.label
        self.arch = file.arch
        self.layers = int(file.arch_get("block_count", 0))
        self.gqa = heads // kv_heads if kv_heads else 0
        self.experts = int(file.arch_get("expert_count", 0) or 0)
        self.tied = "output.weight" not in listed
        self.importance = with_importance
        self.value_tensors = sum(_is_value(name) for name in listed)
        self.big_llama = self.layers == 80 and (
            (self.arch == "llama" and heads != kv_heads) or self.arch in ("qwen2", "deci", "olmo")
        )
        self.values = 0
        self.downs = 0

    def choose(self, tensor: Tensor) -> T:
        name, chosen = tensor.name, self.recipe.default
        if name == "output.weight" or (self.tied and _is_embedding(name)):
            return self._output(tensor, chosen)
        if _is_embedding(name):
            return chosen
        if _is_value(name):
            chosen = self._value(chosen)
            self.values += 1
            return chosen
        if "attn_k.weight" in name:
            return T.Q8_0 if self.experts == 8 else chosen
        if "attn_q.weight" in name:
            return chosen
        if "attn_output.weight" in name:
            return self._attention_output(chosen)
        if "ffn_down" in name:
            chosen = self._down(name, chosen)
            self.downs += 1
        return chosen

    def _output(self, tensor: Tensor, chosen: T) -> T:
        if self.arch == "falcon" or tensor.columns % GGML_QUANT_SIZES[chosen][0]:
            return T.Q8_0
        return chosen if chosen == T.Q8_0 else T.Q6_K

    def _value(self, chosen: T) -> T:
        many = self.gqa >= 4
        match self.label:
            case "Q2_K":
                chosen = T.Q4_K if many else T.Q3_K
            case "Q2_K_S":
                chosen = T.Q4_K if many else chosen
            case "Q3_K_M":
                chosen = T.Q5_K if self.values < 2 else T.Q4_K
            case "Q3_K_L":
                chosen = T.Q5_K
            case "IQ4_NL" | "IQ4_XS":
                chosen = T.Q5_K if many else chosen
            case "Q4_K_M" | "Q5_K_M":
                chosen = T.Q6_K if _more_bits(self.values, self.value_tensors) else chosen
            case "Q4_K_S":
                chosen = T.Q5_K if self.values < 4 else chosen
        if self.big_llama and chosen in (T.Q3_K, T.Q4_K):
            chosen = T.Q5_K
        return T.Q8_0 if self.experts == 8 else chosen

    def _down(self, name: str, chosen: T) -> T:
        layer = self.downs
        if self.experts > 1:
            match = re.match(r"blk\.(\d+)\.", name)
            if match is None:
                raise BadInput(f"The tensor {clean(name, 80)} belongs to no layer; the file cannot be quantised.")
            layer = int(match[1])
        first_eighth, falcon = layer < self.layers // 8, self.arch == "falcon"
        more = _more_bits(layer, self.layers)
        match self.label:
            case "Q2_K":
                return T.Q3_K
            case "Q2_K_S":
                return T.Q4_K if first_eighth else chosen
            case "Q3_K_M":
                if layer < self.layers // 16:
                    return T.Q5_K
                return T.Q4_K if not falcon or more else T.Q3_K
            case "Q3_K_L":
                return T.Q4_K if falcon else T.Q5_K
            case "Q4_K_M":
                if falcon:
                    return T.Q6_K if layer < self.layers // 16 else T.Q5_K if more else T.Q4_K
                return T.Q6_K if more else chosen
            case "IQ4_NL" | "IQ4_XS":
                return T.Q5_K if first_eighth and not self.importance else chosen
            case "Q5_K_M":
                return T.Q6_K if more else chosen
            case "Q4_K_S":
                return T.Q5_K if first_eighth and not falcon else chosen
            case "Q4_0" | "Q5_0" if self.importance and first_eighth:
                return T.Q4_1 if self.label == "Q4_0" else T.Q5_1
        return chosen

    def _attention_output(self, chosen: T) -> T:
        if self.arch == "falcon":
            return T.Q4_K if self.label == "Q3_K_L" else chosen
        if self.experts == 8:
            low = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")
            return T.Q5_K if self.label in low else chosen
        return {"Q2_K": T.Q3_K, "Q3_K_M": T.Q4_K, "Q3_K_L": T.Q5_K}.get(self.label, chosen)


def _is_embedding(name: str) -> bool:
    return name in ("token_embd.weight", "per_layer_token_embd.weight")


def _is_value(name: str) -> bool:
    """Values, and fused tensors that hold values, are the most sensitive."""
    return any(part in name for part in ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight"))
