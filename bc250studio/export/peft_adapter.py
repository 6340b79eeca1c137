"""Read a PEFT adapter folder: what it changes, with which scale, and what else it carries.

Works on adapters trained anywhere: only ``adapter_config.json`` and ``adapter_model.safetensors`` are read, and the
path of the base in the config (a path on somebody's training machine) is not followed. numpy only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bc250studio.errors import BadInput, clean
from bc250studio.models.gguf_map import canonical
from bc250studio.models.safetensors_file import SafetensorsFile

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PAIR = re.compile(r"^(?P<module>.+?)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.default)?(?:\.weight)?$")
_LORA_BIAS = re.compile(r"^(?P<module>.+?)\.lora_B(?:\.default)?\.bias$")
_MAGNITUDE = re.compile(r"^(?P<module>.+?)\.lora_magnitude_vector(?:\.default)?(?:\.weight)?$")
_SAVED = re.compile(r"\.modules_to_save(\.default)?\.")
_TOKENS = re.compile(r"^(?P<module>.+?)\.(?:token_adapter\.)?trainable_tokens_delta(?:\.default)?$")


@dataclass(frozen=True)
class Pair:
    """One LoRA pair. ``module`` is transformers' name without ``.weight``; the change is ``scale * B @ A``.

    ``embedding``: A is [rank, vocabulary] and B [hidden, rank], and the change is ``scale * (B @ A)`` transposed.
    """

    module: str
    a: str
    b: str
    rank: int
    scale: float
    embedding: bool = False


@dataclass(frozen=True)
class PeftAdapter:
    """An adapter folder, opened. Tensor names on the right are those in the file.

    ``magnitudes`` (DoRA), ``lora_biases``, ``tokens`` (trained token rows): module -> tensor.
    ``whole``: transformers' tensor name -> tensor, for weights and biases stored whole.
    """

    folder: Path
    config: dict[str, Any]
    weights: SafetensorsFile
    pairs: dict[str, Pair]
    magnitudes: dict[str, str] = field(default_factory=dict)
    lora_biases: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)

    def matrices(self, pair: Pair) -> tuple[np.ndarray, np.ndarray]:
        """A and B as float32."""
        return self.weights.read(pair.a), self.weights.read(pair.b)

    def token_indices(self, module: str) -> list[int]:
        """Which rows of ``module`` were trained (``trainable_token_indices``)."""
        listed = self.config.get("trainable_token_indices")
        if isinstance(listed, Mapping):
            listed = next((v for k, v in listed.items() if module == k or module.endswith("." + str(k))), None)
        if not isinstance(listed, list) or not all(isinstance(index, int) and index >= 0 for index in listed):
            raise BadInput(f"{clean(self.folder)} trains single tokens but does not say which; it cannot be exported.")
        return listed


def is_adapter(folder: Path) -> bool:
    """Does the folder look like a PEFT adapter?"""
    return (folder / CONFIG).is_file()


def read_config(folder: Path) -> dict[str, Any]:
    """``adapter_config.json``.

    Raises:
        BadInput: no such folder or file, or not JSON, or not LoRA.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        raise BadInput(f"{clean(folder)} is not a folder; give the folder that holds {CONFIG}.")
    try:
        config = json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        other = (
            " It looks like an adapter of MLX, whose format is another."
            if (folder / "adapters.safetensors").exists()
            else ""
        )
        raise BadInput(f"{clean(folder)} is not a PEFT adapter: it has no {CONFIG}.{other}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{clean(path)} cannot be read: {clean(error, 120)}.") from error
    if not isinstance(config, dict):
        raise BadInput(f"{clean(path)} is not a JSON object.")
    kind = str(config.get("peft_type", "LORA")).upper()
    if kind != "LORA":
        raise BadInput(
            f"{clean(folder)} is an adapter of the type {clean(kind, 40)}; only LoRA (and DoRA) can be exported."
        )
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise BadInput(f"{clean(path)} has no usable number for {key!r}.")
    return config


def scale_of(config: Mapping[str, Any], module: str, rank: int) -> float:
    """PEFT's scale of a module: alpha / rank, or alpha / sqrt(rank) with rsLoRA; alpha by ``alpha_pattern``.

    Patterns match as in PEFT (``get_pattern_key``): a regular expression for the end of the module's name; the
    first that matches counts. The rank is the tensor's own, so ``rank_pattern`` needs nothing here.
    """
    alpha = config["lora_alpha"]
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise BadInput("The adapter's alpha_pattern is not a table.")
    for pattern, value in patterns.items():
        try:
            matched = re.match(rf"(.*\.)?({pattern})$", module)
        except re.error as error:
            raise BadInput(
                f"The adapter's alpha_pattern {clean(pattern, 80)!r} is not a regular expression."
            ) from error
        if matched:
            alpha = value
            break
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise BadInput(f"The adapter's alpha for {clean(module, 120)} is not a number.")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def read_adapter(folder: Path) -> PeftAdapter:
    """Open an adapter folder.

    Raises:
        BadInput: not a PEFT LoRA folder, half a pair, tensors that do not fit each other, pickled weights only.
    """
    folder = Path(folder)
    config = read_config(folder)
    path = folder / WEIGHTS
    if not path.is_file() and (folder / "adapter_model.bin").is_file():
        raise BadInput(
            f"{clean(folder)} holds its weights as a pickle (adapter_model.bin), which is not opened here because it "
            "can run code; save it again with safe_serialization=True."
        )
    weights = SafetensorsFile([path])
    sides: dict[tuple[str, bool], dict[str, str]] = {}
    magnitudes, lora_biases, tokens, whole = {}, {}, {}, {}
    for name in weights.names:
        if ".original_module." in name:  # PEFT's copy of what a saved module was before training
            continue
        plain = _SAVED.sub(".", name.removeprefix("base_model.model."))
        if match := _PAIR.match(plain):
            sides.setdefault((match["module"], bool(match["embedding"])), {})[match["side"]] = name
        elif match := _LORA_BIAS.match(plain):
            lora_biases[canonical(match["module"])] = name
        elif match := _MAGNITUDE.match(plain):
            magnitudes[canonical(match["module"])] = name
        elif match := _TOKENS.match(plain):
            tokens[canonical(match["module"])] = name
        else:
            whole[canonical(plain)] = name
    pairs = {}
    for (module, embedding), found in sides.items():
        pair = _pair(folder, config, weights, module, embedding, found)
        pairs[pair.module] = pair
    # PEFT stores the untouched weights of adapted embeddings beside the adapter. They say nothing new, unless the
    # vocabulary grew; then rules and merge find the change in shape.
    whole = {name.replace(".base_layer.", "."): stored for name, stored in whole.items()}
    adapter = PeftAdapter(folder, config, weights, pairs, magnitudes, lora_biases, tokens, whole)
    if not pairs and not whole and not tokens:
        raise BadInput(f"{clean(path)} holds no adapter weights.")
    return adapter


def _pair(
    folder: Path, config: dict[str, Any], weights: SafetensorsFile, module: str, embedding: bool, found: dict[str, str]
) -> Pair:
    where = f"{clean(folder)}: {clean(module, 120)}"
    if set(found) != {"A", "B"}:
        raise BadInput(f"{where} has only lora_{next(iter(found))}; the adapter was not saved whole.")
    a, b = weights.shape(found["A"]), weights.shape(found["B"])
    if len(a) != 2 or len(b) != 2 or a[0] != b[1] or 0 in a or 0 in b:
        raise BadInput(f"{where} has matrices that do not fit each other (A {list(a)}, B {list(b)}).")
    rank = a[0]
    # PEFT matches patterns against the module's name inside the base model, wrappers included.
    return Pair(canonical(module), found["A"], found["B"], rank, scale_of(config, module, rank), embedding)
