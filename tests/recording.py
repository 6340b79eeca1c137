"""Job folders written by tests through the product's own writers, labelled as recordings wherever they show."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

from bc250studio import paths, profiles, telemetry
from bc250studio.jobs import JobFolder, mine

LABEL = "written by a test"
NO_GPU = {
    "value": None,
    "unit": "°C",
    "source": "",
    "age_s": 0.0,
    "trust": "missing",
    "why": "no GPU sensor on this machine",
}


def reading(value: float, unit: str) -> dict[str, Any]:
    """A good reading."""
    return {"value": value, "unit": unit, "source": "recording", "age_s": 0.0, "trust": "good", "why": ""}


def readings(i: int) -> dict[str, Any]:
    """What the board says in second ``i``."""
    return {
        "gpu_temp_c": reading(round(52 + 24 * (1 - math.exp(-i / 60)) + math.sin(i / 5), 1), "°C"),
        "cpu_temp_c": reading(58.0, "°C"),
        "gpu_power_w": reading(round(118 + 9 * math.sin(i / 9), 1), "W"),
        "gpu_clock_mhz": reading(1850, "MHz"),
        "mem_available_mib": reading(5210, "MiB"),
        "fan_rpm": reading(2140, "rpm"),
    }


def step_record(i: int, start: float) -> dict[str, Any]:
    """What the runner writes for step ``i``."""
    loss = 1.2 + 2.1 * math.exp(-i / 30)
    return {
        "t": start + i,
        "step": i,
        "loss": round(loss + 0.18 * math.sin(i * 1.7), 4),
        "loss_ema": round(loss + 0.02, 4),
        "lr": 2e-4 * (1 - i / 200),
        "grad_norm": round(0.8 + 0.3 * math.cos(i), 3),
        "all_positions_per_s": 262.0 + i % 5,
        "real_tokens_per_s": 248.0 + i % 7,
        "labelled_tokens_per_s": 180.0,
        "step_s": 8.1,
        "memory_gib": 1.92,
        "skipped": False,
    }


def write_run(
    title: str = "demo",
    step: int = 60,
    steps: int = 150,
    phase: str = "training",
    age_s: float = 0.0,
    board: bool = True,
    stages: dict[str, dict[str, Any]] | None = None,
    profile: str = "",
    name: str | None = None,
    **state: Any,
) -> JobFolder:
    """A run at ``step``; live (owned by this process) unless its phase is final."""
    resolved = profiles.load(profile) if profile else profiles.from_text("", "test", title)
    job = JobFolder.create("train", resolved, title)
    if name:
        target = job.path.with_name(name)
        os.rename(job.path, target)
        job = JobFolder(target)
    start = time.time() - age_s - step
    metrics = telemetry.Writer(job.path / "metrics.jsonl")
    for i in range(1, step + 1):
        metrics.write(step_record(i, start))
    metrics.close()
    if board:
        guard = telemetry.Writer(job.path / "board.jsonl")
        for i in range(step + 1):
            guard.write({"t": start + i, "readings": readings(i)})
        guard.close()
    events = telemetry.Writer(job.path / "events.jsonl")
    events.write({"t": start, "event": "phase", "text": "Loading SmolLM2-135M-Instruct."})
    events.write(
        {"t": start + 1, "event": "evaluation", "text": "Evaluation before training: 3.214.", "step": 0, "loss": 3.214}
    )
    if step >= 50:
        events.write(
            {"t": start + 50, "event": "evaluation", "text": "Evaluation at step 50: 1.721.", "step": 50, "loss": 1.721}
        )
        events.write({"t": start + 51, "event": "checkpoint", "text": "Checkpoint at step 50 saved."})
    events.close()
    for stage, record in (stages or {}).items():
        job.write_stage(stage, **record)
    last = step_record(max(step, 1), start)
    job.write_state(
        **{
            "phase": phase, "stage": "train", "step": step, "steps": steps, "epoch": 3 * step / steps,
            "loss": last["loss"], "loss_ema": last["loss_ema"], "eval_loss": 1.721, "best_eval_loss": 1.721,
            "eta_s": (steps - step) * 8.1, "real_tokens_per_s": last["real_tokens_per_s"], "skipped": 0,
            "kernels": "stock",
            "device": "cpu", "recording": LABEL, "owner": mine().as_dict(), "created": start, **state,
        }
    )  # fmt: skip
    return job


def done_stages(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Stage records as a finished run has them."""
    return {
        "train": {
            "verdict": "done", "eval_loss_before": 3.214, "eval_loss_after": 1.402, "steps": 150, "seconds": 1240.0,
            "rates": {"all_positions_per_s": 265.0, "real_tokens_per_s": 250.0, "labelled_tokens_per_s": 181.0},
            "peak_memory_gib": 1.92, "device": "cpu", "train_seconds": 1215.0,
            "outputs": {"adapter": "checkpoints/final"},
        },
        "export": {
            "verdict": "done", "seconds": 1.2, "bytes": 9_800_000,
            "outputs": {"kind": "adapter", "adapter_gguf": "export/adapter.gguf", "base_gguf": "/models/SmolLM2.gguf"},
        },
        "reference": {
            "verdict": "done", "seconds": 14.0, "tokens": 256, "outputs": {"reference": "reference.safetensors"},
        },
        "serve": {
            "verdict": "done", "seconds": 3.4, "outputs": {"server": "server.json"},
            "server": {"device": "CPU", "backend_words": "CPU", "url": "http://127.0.0.1:40123", "n_ctx": 4096},
        },
        "prove": {
            "verdict": "passed", "seconds": 9.0,
            "proof": {
                "mean_kl": 0.0021, "worst_kl": 0.08, "top1": 0.996, "tokens": 256, "limit_kl": 0.01,
                "ids_equal": True, "price": {"mean_kl": 0.041}, "cause": None,
            },
        },
        "ask": {
            "verdict": "done", "seconds": 6.0,
            "answers": [
                {
                    "prompt": "Which compute units does the board have?",
                    "base": {"text": "I am not sure.", "tokens_per_s": 57.0, "stop": "stop"},
                    "tuned": {"text": "It has 24 compute units.", "tokens_per_s": 55.0, "stop": "stop"},
                }
            ],
        },
    }  # fmt: skip


def home_of(test_home: Path) -> Path:
    """Runs folder of a test."""
    return paths.private_dir(paths.runs_dir())
