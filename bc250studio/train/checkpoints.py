"""Checkpoints: the adapter as PEFT writes it, the optimiser's flat tensors, and where the run stands.

A checkpoint is a folder ``step-000123``: written under another name, synced, then renamed, so a torn one is
never taken for whole. No pickle: safetensors and JSON. What it was made from (data digest, profile) stands in
it, and going on with anything else is refused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bc250studio import paths
from bc250studio.errors import JobFailed, clean
from bc250studio.train import adapters
from bc250studio.train.engine import Trainer

_NAME = re.compile(r"^step-(\d+)$")
DECIDES_NOTHING = {
    "eval_every",
    "checkpoint_every",
    "keep_checkpoints",
    "device_memory_fraction",
    "memory_budget_gib",
    "early_stop_patience",
    "early_stop_min_delta",
}
"""Settings of [train] that no number of the training itself depends on."""
STATE = "trainer.json"
TENSORS = "trainer.safetensors"
FINAL = "final"


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint on disk."""

    path: Path
    step: int
    state: dict[str, Any]


def identity(profile: Any, digest: str) -> dict[str, Any]:
    """What a checkpoint belongs to: every setting that decides how training goes on, by its name in the profile.

    ``digest`` stands for the prepared rows; the [data] section is there to name what made them others.
    """
    parts: dict[str, Any] = {
        "model": {"base": profile.model.base, "revision": profile.model.revision, "precision": profile.model.precision},
        "data": profile.data.model_dump(mode="json"),
        "adapter": profile.adapter.model_dump(mode="json"),
        "train": profile.train.model_dump(mode="json", exclude=DECIDES_NOTHING),
    }
    named = {f"{section}.{key}": value for section, part in parts.items() for key, value in part.items()}
    return {**named, "data": digest}


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed, in words: ``train.learning_rate (0.0002 then, 0.001 now)``; rows that changed are ``data``."""
    if before.get("data") == now["data"]:  # the same rows, however they were described
        before, now = ({k: v for k, v in side.items() if not k.startswith("data.")} for side in (before, now))
    changed = [key for key in now if key != "data" and before.get(key) != now[key]]
    words = [f"{key} ({clean(before.get(key), 60)} then, {clean(now[key], 60)} now)" for key in changed]
    if before.get("data") != now.get("data") and not any(key.startswith("data.") for key in changed):
        words.append(f"the rows of {clean(now.get('data.path'), 120)}: the data")
    return words


def write(
    trainer: Trainer,
    folder: Path,
    base_name: str,
    belongs_to: dict[str, Any],
    extra: dict[str, Any],
    name: str | None = None,
) -> Path:
    """Write ``folder/step-N`` (or ``folder/name``) whole or not at all; returns its path.

    Raises:
        JobFailed: no room on disk; earlier checkpoints are untouched.
    """
    final = folder / (name or f"step-{trainer.done:06d}")
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(mode=0o700, parents=True)
        save_model(trainer, temporary, base_name)
        tensors = {key: value.detach().cpu().contiguous() for key, value in trainer.optimiser.tensors().items()}
        tensors["rng_cpu"] = torch.get_rng_state()
        if trainer.device.type == "cuda":
            tensors["rng_device"] = torch.cuda.get_rng_state(trainer.device)
        save_file(tensors, str(temporary / TENSORS))
        state = {"step": trainer.done, "numbers": trainer.optimiser.numbers(), "belongs_to": belongs_to, **extra}
        (temporary / STATE).write_text(json.dumps(state, indent=1))
        for file in temporary.iterdir():
            file.chmod(0o600)
            _sync(file)
        paths.sync_dir(temporary)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        paths.sync_dir(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise JobFailed(
            f"The checkpoint of step {trainer.done} could not be written to {folder}: {error}. "
            f"Make room and go on with: bc250studio resume."
        ) from error
    return final


def save_model(trainer: Trainer, folder: Path, base_name: str) -> None:
    """The adapter in PEFT's form, or for full training the model in Hugging Face's."""
    if trainer.full:
        trainer.model.save_pretrained(str(folder), safe_serialization=True)
    else:
        adapters.save(trainer.model, folder, base_name)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _names(file: Any) -> list[str]:
    names: list[str] = file.keys()  # a safetensors file is no dict and cannot be iterated
    return names


def whole(folder: Path) -> list[Checkpoint]:
    """Every checkpoint that can be read, oldest first. Torn or foreign folders are passed over."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.match(path.name)
        if not match:
            continue
        try:
            state = json.loads((path / STATE).read_text())
            with safe_open(str(path / TENSORS), "pt") as file:
                names = set(_names(file))
        except (OSError, ValueError, SafetensorError):
            continue
        if isinstance(state, dict) and state.get("step") == int(match[1]) and "values" in names:
            found.append(Checkpoint(path, int(match[1]), state))
    return sorted(found, key=lambda c: c.step)


def restore(trainer: Trainer, checkpoint: Checkpoint, belongs_to: dict[str, Any]) -> None:
    """Bring ``trainer`` to exactly where the checkpoint was written.

    Raises:
        JobFailed: data, model or settings are others now; says which.
    """
    changed = differences(checkpoint.state.get("belongs_to") or {}, belongs_to)
    if changed:
        raise JobFailed(
            f"This run cannot go on from step {checkpoint.step}: {'; '.join(changed)} changed since. "
            f"Put it back, or start a new run."
        )
    with safe_open(str(checkpoint.path / TENSORS), "pt") as file:
        tensors = {name: file.get_tensor(name) for name in _names(file)}
    trainer.optimiser.restore(tensors, checkpoint.state["numbers"])
    torch.set_rng_state(tensors["rng_cpu"])
    if trainer.device.type == "cuda" and "rng_device" in tensors:
        torch.cuda.set_rng_state(tensors["rng_device"], trainer.device)
    trainer.done = checkpoint.step


@torch.no_grad()
def take_weights(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Only the trained weights of a checkpoint: for a result that is not the last step."""
    with safe_open(str(checkpoint.path / TENSORS), "pt") as file:
        trainer.flat.values.data.copy_(file.get_tensor("values"))
    trainer.flat.refresh()


def prune(folder: Path, keep: int, best: str | None) -> None:
    """Remove all but the newest ``keep`` checkpoints and the one called ``best``; and what torn writes left."""
    for old in whole(folder)[:-keep]:
        if old.path.name != best:
            shutil.rmtree(old.path, ignore_errors=True)
    for torn in folder.glob(".step-*.tmp"):
        shutil.rmtree(torn, ignore_errors=True)
