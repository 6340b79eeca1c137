"""What to serve and how, and the command line that says it to llama-server: drawn from what the binary has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bc250studio import profiles
from bc250studio.errors import BadInput
from bc250studio.serve.binary import Binary, Device

SLOTS = 2  # base and tuned answer side by side, each with its own cache


@dataclass(frozen=True)
class Plan:
    """What to serve and how. ``adapter`` is None for a merged or plain model; ``scale`` is its scale for requests
    that name none."""

    model: Path
    adapter: Path | None = None
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = 0
    context: int = 4096
    batch: int = 128
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: str = "auto"
    threads: int | None = None
    slots: int = SLOTS
    warmup: bool = True
    scale: float = 1.0
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, serve: profiles.profile.Serve, model: Path, adapter: Path | None) -> Plan:
        """From a profile's [serve] section."""
        return cls(model=model, adapter=adapter, **serve.model_dump())


def command(binary: Binary, plan: Plan, device: Device, port: int, key_file: Path) -> list[str]:
    """The command line, drawn from what the binary has. The context is given once for each slot."""
    words = [str(binary.path), "--model", str(plan.model), "--host", plan.host, "--port", str(port)]

    def add(flag: str, *values: object) -> None:
        if binary.has(flag):
            words.extend([flag, *map(str, values)])

    if plan.adapter is not None:
        if not binary.has("--lora"):
            raise BadInput(
                f"{binary.path} cannot serve an adapter (its --help has no --lora); export a merged file instead."
            )
        if plan.scale == 1.0:
            words += ["--lora", str(plan.adapter)]
        else:
            words += ["--lora-scaled", f"{plan.adapter}:{plan.scale:.9g}"]
    for flag, value in (("--cache-type-k", plan.cache_type_k), ("--cache-type-v", plan.cache_type_v)):
        if not binary.allows(flag, value):
            known = ", ".join(binary.values[flag])
            raise BadInput(f"{binary.path} has no cache type {value!r} ({flag} knows {known}).")
        add(flag, value)
    if plan.cache_type_v not in ("f16", "f32", "bf16") and plan.flash_attention == "off":
        raise BadInput(
            "A quantised value cache (serve.cache_type_v) needs flash attention; set serve.flash_attention to auto."
        )
    add("--ctx-size", plan.context * plan.slots)
    add("--parallel", plan.slots)
    add("--no-kv-unified")
    add("--ubatch-size", plan.batch)
    add("--flash-attn", plan.flash_attention)
    if plan.threads:
        add("--threads", plan.threads)
    if device.name == "CPU":
        add("--device", "none")
    else:
        add("--device", device.name)
        add("--n-gpu-layers", 999)
    add("--fit", "off")  # what was asked for or an error, never a quietly smaller context
    add("--cache-ram", 0)  # prompts of old chats would eat the memory the board shares with its GPU
    add("--offline")
    add("--no-webui") if not binary.has("--no-ui") else add("--no-ui")
    add("--log-colors", "off")
    if binary.has("--verbosity") and "--log-verbosity" in binary.flags:
        add("--verbosity", 4)  # below 4 new builds do not say which device holds what
    if not plan.warmup:
        add("--no-warmup")
    if binary.has("--api-key-file"):
        words += ["--api-key-file", str(key_file)]
    return words
