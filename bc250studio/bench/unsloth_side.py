"""Runs inside Unsloth's own environment: its model, its kernels, its trainer, our rows. Imports nothing of ours.

``python unsloth_side.py REQUEST.json RESULT.json``. The request holds a model folder, rows as an .npz and the
cases; a result holds a case's real tokens a second, counted from what the trainer feeds the model. Attention
is whatever Unsloth finds (flash-attn when it is installed).
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main(request_file: str, result_file: str) -> None:
    """Measure every case of the request and write the result file."""
    request = json.loads(Path(request_file).read_text())
    try:
        import unsloth
        from unsloth import FastLanguageModel
    except Exception as error:  # its import checks a dozen packages and the device
        _write(
            result_file, {"skipped": f"Unsloth cannot be imported by {sys.executable}: {type(error).__name__}: {error}"}
        )
        return
    import numpy as np
    import torch

    stored = np.load(request["rows"])
    ids, labelled, offsets = stored["ids"], stored["labelled"], stored["offsets"]
    rows = [(ids[a:b].tolist(), labelled[a:b].astype(int).tolist()) for a, b in itertools.pairwise(offsets)]
    work, held_out = [rows[i] for i in request["work"]], [rows[i] for i in request["held_out"]]
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[request["dtype"]]
    model, tokenizer = FastLanguageModel.from_pretrained(
        request["model"], max_seq_length=request["longest"], dtype=dtype, load_in_4bit=False
    )
    model = FastLanguageModel.get_peft_model(
        model, r=request["rank"], lora_alpha=request["alpha"], lora_dropout=0.0, bias="none", target_modules=TARGETS,
        use_gradient_checkpointing=False, random_state=request["seed"],
    )  # fmt: skip
    from unsloth.models import _utils

    result: dict[str, Any] = {
        "version": unsloth.__version__,
        "flash_attention": bool(getattr(_utils, "HAS_FLASH_ATTENTION", False)),
        "held_out_before": _evaluate(model, held_out),
        "cases": [],
    }
    for case in request["cases"]:
        try:
            result["cases"].append(_train(model, tokenizer, work, case, request))
        except Exception as error:
            result["cases"].append({**case, "failed": f"{type(error).__name__}: {error}"[:300]})
        _write(result_file, result)
    _write(result_file, result)


def _evaluate(model: Any, rows: list[tuple[list[int], list[int]]]) -> float:
    """Mean loss over the labelled tokens, each row alone."""
    import torch

    total, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for ids, kept in rows:
            tokens = torch.tensor([ids], device="cuda")
            labels = torch.tensor([[i if k else -100 for i, k in zip(ids, kept, strict=True)]], device="cuda")
            loss = model(input_ids=tokens, labels=labels).loss
            total, count = total + float(loss) * sum(kept), count + sum(kept)
    model.train()
    return total / count


def _train(
    model: Any, tokenizer: Any, rows: list[Any], case: dict[str, Any], request: dict[str, Any]
) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    data = Dataset.from_dict({"input_ids": [ids for ids, _ in rows], "completion_mask": [kept for _, kept in rows]})
    warm_up, steps = case["warm_up"], case["steps"]
    settings = SFTConfig(
        output_dir=request["scratch"], per_device_train_batch_size=case["batch"], gradient_accumulation_steps=1,
        max_steps=warm_up + steps, learning_rate=request["learning_rate"], lr_scheduler_type="constant",
        warmup_steps=0, weight_decay=0.0, max_grad_norm=request["clip"], optim="adamw_torch_fused",
        bf16=request["dtype"] == "bf16", fp16=request["dtype"] == "fp16", packing=case["packing"],
        max_length=case["tokens"], completion_only_loss=True, logging_steps=1, report_to="none",
        save_strategy="no", seed=request["seed"], dataset_num_proc=1,
    )  # fmt: skip
    counts: list[int] = []
    marks: dict[str, float] = {}

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (warm_up, warm_up + steps):
                torch.cuda.synchronize()
                marks["end" if marks else "start"] = time.perf_counter()

    trainer = SFTTrainer(
        model=model, processing_class=tokenizer, train_dataset=data, args=settings, callbacks=[Clock()]
    )
    step = trainer.training_step

    def counted(inner: Any, inputs: dict[str, Any], *rest: Any, **named: Any) -> Any:
        mask = inputs.get("attention_mask")
        ids = inputs["input_ids"]
        counts.append(int(mask.sum()) if mask is not None and mask.shape == ids.shape else ids.numel())
        return step(inner, inputs, *rest, **named)

    trainer.training_step = counted
    torch.cuda.reset_peak_memory_stats()
    trainer.train()
    seconds = marks["end"] - marks["start"]
    real = sum(counts[-steps:])
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        **case,
        "seconds": seconds,
        "real_tokens": real,
        "real_tokens_per_s": real / seconds,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
    }


def _write(path: str, content: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(content))


if __name__ == "__main__":
    main(*sys.argv[1:3])
