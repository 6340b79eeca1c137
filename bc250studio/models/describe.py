"""Say what a model is, from config.json or a GGUF's metadata: shapes, vocabulary, end tokens, licence. No torch.

Two names matter and differ: ``model_type`` is transformers', ``gguf_arch`` is llama.cpp's.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bc250studio.errors import BadInput, clean
from bc250studio.models.find import ModelSource
from bc250studio.models.gguf_header import GgufHeader, read_header

# transformers' model_type -> llama.cpp's architecture, where they differ or more than one maps to the same.
_GGUF_ARCH = {
    "mistral": "llama",
    "gemma3_text": "gemma3",
    "gemma2": "gemma2",
    "phi": "phi2",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "qwen3_5_text": "qwen35",
    "gpt_neox": "gptneox",
    "gpt_bigcode": "starcoder",
    "granite": "granite",
    "cohere": "command-r",
    "falcon_h1": "falcon-h1",
    "mixtral": "llama",
}
_MODEL_TYPE = {
    "gemma3": "gemma3_text",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "qwen35": "qwen3_5_text",
    "gptneox": "gpt_neox",
    "command-r": "cohere",
    "starcoder": "gpt_bigcode",
}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
}


@dataclass(frozen=True)
class Description:
    """A model in numbers. ``context`` and ``sliding_window`` are in tokens, ``parameters`` counts numbers.

    ``eos_ids`` are all ids that end a generation, the first is the tokenizer's own. ``config`` is config.json
    (or what a GGUF's metadata says, under config.json's names).
    """

    model_type: str
    gguf_arch: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    context: int
    rope_theta: float
    sliding_window: int | None
    parameters: int
    bos_id: int | None
    eos_ids: list[int]
    licence: str | None
    config: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: everything but the raw config."""
        table = asdict(self)
        del table["config"]
        return table


def describe(source: ModelSource) -> Description:
    """What the model of ``source`` is.

    Raises:
        BadInput: no or broken config.json, or a GGUF file without the numbers of a language model.
    """
    if source.has_config:
        return _from_config(source.folder)
    if source.gguf is None:
        raise BadInput(f"{source.folder} holds neither config.json nor a GGUF file.")
    return _from_gguf(read_header(source.gguf, arrays=False))


def gguf_arch_of(model_type: str) -> str:
    """llama.cpp's architecture name for transformers' ``model_type``."""
    return _GGUF_ARCH.get(model_type, model_type)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model folder.

    Raises:
        BadInput: missing, not JSON, or not an object.
    """
    try:
        table = json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise BadInput(f"{path} is missing.") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read: {clean(error, 120)}.") from error
    if not isinstance(table, dict):
        raise BadInput(f"{path} is not a JSON object.")
    return table


def _from_config(folder: Path) -> Description:
    whole = read_json(folder / "config.json")
    config = whole
    for part in ("text_config", "language_config"):  # models that also see or hear keep the language part inside
        if "hidden_size" not in config and isinstance(whole.get(part), dict):
            config = {**whole, **whole[part]}
    where = folder / "config.json"
    heads = _whole(config, where, "num_attention_heads", "n_head")
    hidden = _whole(config, where, "hidden_size", "n_embd")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    model_type = str(config.get("model_type") or "")
    if not model_type:
        raise BadInput(f"{where} names no model_type.")
    intermediate = config.get("intermediate_size") or config.get("n_inner") or 4 * hidden
    tied = bool(config.get("tie_word_embeddings", whole.get("tie_word_embeddings", _tied_by_default(model_type))))
    facts = {
        "hidden": hidden,
        "intermediate": int(intermediate if isinstance(intermediate, int) else max(intermediate)),
        "layers": _whole(config, where, "num_hidden_layers", "n_layer"),
        "heads": heads,
        "kv_heads": int(config.get("num_key_value_heads") or heads),
        "head_dim": int(config.get("head_dim") or hidden // heads),
        "vocab": _whole(config, where, "vocab_size"),
    }
    eos = _ids(config.get("eos_token_id"))
    generation = folder / "generation_config.json"
    if generation.is_file():
        eos += [i for i in _ids(read_json(generation).get("eos_token_id")) if i not in eos]
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    bos = _ids(config.get("bos_token_id"))
    return Description(
        model_type=model_type,
        gguf_arch=gguf_arch_of(model_type),
        **facts,
        tied=tied,
        context=int(config.get("max_position_embeddings") or config.get("n_positions") or 0),
        rope_theta=float(config.get("rope_theta") or _theta(rope) or 10000.0),
        sliding_window=int(window) if window else None,
        parameters=_stored_parameters(folder, tied) or _estimate(facts, tied),
        bos_id=bos[0] if bos else None,
        eos_ids=eos,
        licence=_licence(folder),
        config=config,
    )


def _from_gguf(header: GgufHeader) -> Description:
    if header.get("general.type", "model") not in ("model", None) and "llm" not in str(header.get("general.type")):
        raise BadInput(f"{header.path} is a GGUF file of type {clean(header.get('general.type'), 40)!r}, not a model.")
    needed = ("embedding_length", "block_count", "attention.head_count")
    if not header.arch or any(not isinstance(header.of_arch(k), int) for k in needed):
        raise BadInput(f"{header.path} does not describe a language model (no {header.arch or 'architecture'} sizes).")
    hidden, layers, heads = (header.of_arch(k) for k in needed)
    kv_heads = header.of_arch("attention.head_count_kv", heads)
    tokens = header.get("tokenizer.ggml.tokens", header.of_arch("vocab_size", 0))
    embedding = header.tensors.get("token_embd.weight")
    vocab = embedding.shape[-1] if embedding else tokens if isinstance(tokens, int) else len(tokens)
    feed = header.of_arch("feed_forward_length", 4 * hidden)
    model_type = _MODEL_TYPE.get(header.arch, header.arch)
    tied = "output.weight" not in header.tensors
    head_dim = int(header.of_arch("attention.key_length") or hidden // heads)
    bos, eos = header.get("tokenizer.ggml.bos_token_id"), header.get("tokenizer.ggml.eos_token_id")
    ends = [i for i in (eos, header.get("tokenizer.ggml.eot_token_id")) if isinstance(i, int)]
    theta = float(header.of_arch("rope.freq_base", 10000.0))
    context = int(header.of_arch("context_length", 0))
    window = header.of_arch("attention.sliding_window")
    config = {
        "model_type": model_type,
        "architectures": [_ARCHITECTURES[model_type]] if model_type in _ARCHITECTURES else [],
        "hidden_size": hidden,
        "intermediate_size": _one(feed),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _one(kv_heads),
        "head_dim": head_dim,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "max_position_embeddings": context,
        "rope_theta": theta,
        "rms_norm_eps": header.of_arch("attention.layer_norm_rms_epsilon", 1e-6),
        "bos_token_id": bos,
        "eos_token_id": eos,
        **({"sliding_window": window} if window else {}),
    }
    return Description(
        model_type=model_type,
        gguf_arch=header.arch,
        hidden=hidden,
        intermediate=_one(feed),
        layers=layers,
        heads=heads,
        kv_heads=_one(kv_heads),
        head_dim=head_dim,
        vocab=vocab,
        tied=tied,
        context=context,
        rope_theta=theta,
        sliding_window=int(window) if isinstance(window, int) and window else None,
        parameters=sum(info.elements for info in header.tensors.values()),
        bos_id=bos if isinstance(bos, int) else None,
        eos_ids=list(dict.fromkeys(ends)),
        licence=_text_or_none(header.get("general.license")),
        config=config,
    )


def _one(value: Any) -> int:
    """GGUF writes some sizes per layer; the largest stands for all."""
    return int(max(value)) if isinstance(value, list) and value else int(value)


def _whole(config: dict[str, Any], where: Path, *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise BadInput(f"{where} has no usable {names[0]}: is it a language model?")


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]


def _theta(rope: Any) -> float | None:
    if isinstance(rope, dict):
        if isinstance(rope.get("rope_theta"), (int, float)):
            return float(rope["rope_theta"])
        for inner in rope.values():  # one table per attention type
            if isinstance(inner, dict) and isinstance(inner.get("rope_theta"), (int, float)):
                return float(inner["rope_theta"])
    return None


def _tied_by_default(model_type: str) -> bool:
    return model_type in ("gemma", "gemma2", "gemma3_text", "gemma3", "gpt2", "cohere")


def _estimate(facts: dict[str, int], tied: bool) -> int:
    """Parameters of a Llama-shaped model: embeddings, q/k/v/o, gated MLP, two norms a layer and one at the end."""
    h, i, d = facts["hidden"], facts["intermediate"], facts["head_dim"]
    attention = h * d * (2 * facts["heads"] + 2 * facts["kv_heads"])
    layer = attention + 3 * h * i + 2 * h
    return facts["vocab"] * h * (1 if tied else 2) + facts["layers"] * layer + h


def _stored_parameters(folder: Path, tied: bool) -> int:
    """Numbers stored in the folder's safetensors files, read from their headers (8 bytes length, then JSON)."""
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                if length > 100_000_000:
                    return 0
                table = json.loads(stream.read(length))
            for name, info in table.items():
                if name == "__metadata__" or (tied and name == "lm_head.weight"):
                    continue
                total += math.prod(info["shape"])
        except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError):
            return 0
    return total


def _licence(folder: Path) -> str | None:
    """The `license:` line of the model card, or the first line of a LICENSE file."""
    try:
        head = (folder / "README.md").read_text("utf-8", "replace")[:20_000]
        match = re.match(r"^---\s*\n(.*?)\n---", head, re.S)
        line = re.search(r"^license:\s*(\S.*)$", match.group(1), re.M) if match else None
        if line:
            return clean(line.group(1).strip().strip("'\""), 60)
    except OSError:
        pass
    for file in sorted(folder.glob("LICENSE*")):
        try:
            lines = [part.strip() for part in file.read_text("utf-8", "replace")[:2000].splitlines() if part.strip()]
        except OSError:
            continue
        if lines:
            return clean(lines[0], 60)
    return None


def _text_or_none(value: Any) -> str | None:
    return clean(value, 60) if isinstance(value, str) and value else None
