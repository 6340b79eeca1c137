"""What can leave a run as an adapter, what only as a merged file, and what not at all. Known before training.

llama.cpp's adapters are pairs of matrices and one global alpha. Everything else a fine-tune can hold either fits
into that exactly (rsLoRA and per-module alphas are folded into B), or must be merged into the weights, or is
refused here. The measured list of what other exporters get silently wrong is in docs/export.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bc250studio.errors import BadInput, clean
from bc250studio.export.peft_adapter import PeftAdapter, is_adapter, read_config
from bc250studio.models.describe import Description
from bc250studio.models.gguf_map import ALWAYS_TIED, check_known
from bc250studio.profiles import Profile

_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_HARMLESS_CONFIGS = {"eva_config", "corda_config", "lora_ga_config", "loftq_config", "megatron_config"}
_HARMLESS_SWITCHES = {"use_rslora", "use_dora", "use_cache"}
_EXPERT_LAYERS = ("experts", "gate_up_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings")


@dataclass(frozen=True)
class Route:
    """How a fine-tune leaves: ``reasons`` say why it is not an adapter (empty when it is one)."""

    kind: Literal["adapter", "merged"]
    reasons: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """One sentence for a screen."""
        if not self.reasons:
            return f"Exported as {'a small adapter' if self.kind == 'adapter' else 'one merged file'}."
        return f"Exported as one merged file, because {'; '.join(self.reasons)}."


def route(fine_tune: Profile | Mapping[str, Any], description: Description | None) -> Route:
    """Adapter or merged file, from a profile (before training) or an ``adapter_config.json`` (anyone's adapter).

    Without a ``description`` the base counts as untied and of a known architecture.

    Raises:
        BadInput: neither would be right; says which part of the fine-tune is in the way.
    """
    if description is not None:
        check_known(description.gguf_arch)
    if isinstance(fine_tune, Profile):
        reasons = _from_profile(fine_tune, description)
        asked_merged = fine_tune.export.kind == "merged"
    else:
        reasons, asked_merged = _from_config(fine_tune, description), False
    return Route("merged" if reasons or asked_merged else "adapter", tuple(dict.fromkeys(reasons)))


def route_adapter(adapter: PeftAdapter, description: Description | None, vocabulary: int | None = None) -> Route:
    """The same for an opened adapter folder, where the tensors themselves say what is in it.

    ``vocabulary``: rows of the base's embedding, to notice added tokens.
    """
    config = route(adapter.config, description)
    reasons = list(config.reasons)
    tied = description.tied if description else False
    reasons += _embedding_reasons((pair.module for pair in adapter.pairs.values()), tied)
    if adapter.magnitudes:
        reasons.append("DoRA trains magnitudes, which an adapter file cannot hold")
    if adapter.lora_biases or any(name.endswith(".bias") for name in adapter.whole):
        reasons.append("it trains biases, which an adapter file cannot hold")
    if adapter.tokens:
        reasons.append("it trains rows of single tokens, which an adapter file cannot hold")
    for name, stored in adapter.whole.items():
        if name.endswith(".bias"):
            continue
        if ".base_layer." not in stored:
            reasons.append(f"{name} is stored whole, which an adapter file cannot hold")
        elif vocabulary and adapter.weights.shape(stored)[0] != vocabulary:
            reasons.append("tokens were added to the vocabulary")
    if description:
        _check_head(description, (*adapter.pairs, *(name.removesuffix(".weight") for name in adapter.whole)))
    return Route("merged" if reasons else "adapter", tuple(dict.fromkeys(reasons)))


def _from_profile(profile: Profile, description: Description | None) -> list[str]:
    adapter = profile.adapter
    if adapter.kind == "full":
        return ["all weights are trained"]
    reasons = []
    if adapter.dora:
        reasons.append("DoRA trains magnitudes, which an adapter file cannot hold")
    reasons += [f"{name} is trained whole, which an adapter file cannot hold" for name in adapter.modules_to_save]
    targets = [adapter.targets] if isinstance(adapter.targets, str) else list(adapter.targets)
    reasons += _embedding_reasons(targets, bool(description and description.tied))
    if description:
        _check_head(description, (*targets, *adapter.modules_to_save))
        _check_experts(description, targets)
    earlier = Path(adapter.start_from).expanduser() if adapter.start_from else None
    if earlier is not None and is_adapter(earlier):
        reasons += _from_config(read_config(earlier), description)
    return reasons


def _from_config(config: Mapping[str, Any], description: Description | None) -> list[str]:
    start = str(config.get("init_lora_weights", "")).lower()
    if start.startswith(_CHANGED_BASE):
        raise BadInput(
            f"The adapter was started with init_lora_weights = {clean(start, 40)!r}, which changes the base's weights, "
            "so it only fits that changed base; save it with PEFT's path_initial_model_for_weight_conversion first."
        )
    for key, value in config.items():
        unknown = (key.startswith("use_") and key not in _HARMLESS_SWITCHES) or (
            key.endswith("_config") and key not in _HARMLESS_CONFIGS
        )
        if value and (unknown or key in ("layer_replication", "alora_invocation_tokens", "invocation_string")):
            raise BadInput(
                f"The adapter uses {clean(key, 40)}, which llama.cpp has no exact form for; it can be neither an "
                "adapter file nor merged here."
            )
    reasons = []
    if config.get("use_dora"):
        reasons.append("DoRA trains magnitudes, which an adapter file cannot hold")
    reasons += [
        f"{clean(name, 60)} is trained whole, which an adapter file cannot hold"
        for name in _listed(config, "modules_to_save")
    ]
    if config.get("trainable_token_indices"):
        reasons.append("it trains rows of single tokens, which an adapter file cannot hold")
    if config.get("bias", "none") not in ("none", None) or config.get("lora_bias"):
        reasons.append("it trains biases, which an adapter file cannot hold")
    tied = bool(description and description.tied)
    reasons += _embedding_reasons(_listed(config, "target_modules"), tied)
    return reasons


def _listed(config: Mapping[str, Any], key: str) -> list[str]:
    value = config.get(key)
    if isinstance(value, str):
        return [value]
    return [str(name) for name in value] if isinstance(value, (list, tuple)) else []


def _embedding_reasons(modules: Iterable[str], tied: bool) -> list[str]:
    """On tied models llama.cpp loads such an adapter and fails, or dies at the first request."""
    reasons = []
    for module in modules if tied else ():
        last = module.rpartition(".")[2]
        if last == "lm_head":
            reasons.append("lm_head is tied to the embedding and has no tensor of its own to adapt")
        elif last in _EMBEDDINGS:
            reasons.append(f"{last} is tied to the output, and an adapter would change only one of the two")
    return reasons


def _check_experts(description: Description, targets: Iterable[str]) -> None:
    """Experts are stacked in one tensor; a LoRA on them has no exact form here yet."""
    config = description.config
    if not any(config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts")):
        return
    for target in targets:
        if target == "all-linear" or target.rpartition(".")[2] in _EXPERT_LAYERS:
            raise BadInput(
                f"adapter.targets = {clean(target, 60)!r} would train the experts of this model, whose adapters cannot "
                'be exported; set adapter.targets to ["q_proj", "k_proj", "v_proj", "o_proj"].'
            )


def _check_head(description: Description, modules: Iterable[str]) -> None:
    """Gemma and Gemma 2 have no output tensor in llama.cpp at all, so head and embedding cannot part there."""
    if description.gguf_arch not in ALWAYS_TIED:
        return
    for module in modules:
        if module.rpartition(".")[2] in ("lm_head", *_EMBEDDINGS):
            raise BadInput(
                f"{clean(module, 80)} of a {description.gguf_arch} model cannot be trained for llama.cpp, which "
                "always uses the embedding as the output too while PEFT changes only one of them; leave it out of "
                "adapter.targets and adapter.modules_to_save."
            )
