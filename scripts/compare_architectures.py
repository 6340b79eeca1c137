"""Adapters of further architectures through a real llama-server, against PEFT. Needs llama.cpp's converter.

    PYTHONPATH=. python scripts/compare_architectures.py [FAMILY ...]

Prints the largest log-probability difference of the base and of an rsLoRA adapter. What models/gguf_map.py lists
beyond the families of the tests was compared this way. (Of qwen3_moe with transformers' default norm_topk_prob = false
the base itself differs: llama.cpp always normalises, as the published models do.)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bc250studio.errors import JobFailed
from bc250studio.export.adapter import write_pairs
from bc250studio.export.peft_adapter import read_adapter
from bc250studio.models import convert
from bc250studio.models.find import find
from bc250studio.models.gguf_file import GgufFile
from tests import tiny
from tests.export_tools import LlamaServer, base_gguf, largest_difference, logprobs, make_adapter

MORE = {
    "granite": ("GraniteConfig", {}),
    "arcee": ("ArceeConfig", {}),
    "olmo": ("OlmoConfig", {}),
    "olmo2": ("Olmo2Config", {}),
    "gemma": ("GemmaConfig", {"head_dim": 16, "tie_word_embeddings": True}),
    "starcoder2": ("Starcoder2Config", {"use_bias": True}),
    "seed_oss": ("SeedOssConfig", {"head_dim": 16}),
    "exaone4": ("Exaone4Config", {}),
    "stablelm": ("StableLmConfig", {}),
    "hunyuan": ("HunYuanDenseV1Config", {"head_dim": 16}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
}
IDS = [504, 2365, 282, 260, 1234, 45, 999]

if __name__ == "__main__":
    tiny.FAMILIES.update(MORE)
    for family in sys.argv[1:] or [*MORE, "mixtral", "qwen3_moe"]:
        folder = tiny.tiny_model(family)
        try:
            base = convert.converted(find(str(folder)), "f32")
        except JobFailed:  # the converter wants the family's own tokenizer: write the file with our map
            base = base_gguf(folder)
        out = Path(tempfile.mkdtemp())
        targets = (
            ["q_proj", "k_proj", "v_proj", "o_proj"]
            if family in ("mixtral", "qwen2_moe", "qwen3_moe")
            else "all-linear"
        )
        options = {"r": 8, "lora_alpha": 16, "std": 0.05, "use_rslora": True, "target_modules": targets}
        adapter, model = make_adapter(folder, out / "adapter", **options)
        with GgufFile(base) as file:
            exported = write_pairs(read_adapter(adapter), file, family, out / "adapter.gguf")
            arch = file.arch
        tuned = logprobs(model, IDS)
        with model.disable_adapter():
            untouched = logprobs(model, IDS)
        with LlamaServer(base, [exported.path]) as server:
            plain, applied = largest_difference(server, untouched, IDS), largest_difference(server, tuned, IDS, 0)
        print(
            f"{family:12} {arch:14} base {plain:.1e} adapter {applied:.1e} effect {abs(tuned - untouched).max():.2f}",
            flush=True,
        )
