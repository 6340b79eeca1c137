"""[model]: what is trained, and the file that will be served."""

from __future__ import annotations

from typing import Literal

from bc250studio.profiles.base import Section


class Model(Section):
    """[model]"""

    base: str = "demo:smollm2-135m"
    """The model to start from: `demo:smollm2-135m`, a folder, or a hub id such as `Qwen/Qwen3-0.6B`."""
    revision: str | None = None
    """Branch, tag or commit of a hub model; empty means its main branch."""
    gguf: str | None = None
    """The GGUF file of the same base that llama-server loads; empty finds or makes one."""
    precision: Literal["auto", "fp16", "bf16", "fp32"] = "auto"
    """Number type of the frozen base while training; auto follows the device."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:1` (ROCm devices are called cuda by torch)."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off, and every screen says so when it is on."""
