"""[serve]: how llama-server runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bc250studio.profiles.base import Section

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


class Serve(Section):
    """[serve]"""

    device: str = "auto"
    """`auto` (Vulkan where the binary lists a device, else CPU), `cpu`, or a name such as `Vulkan0`."""
    context: int = Field(4096, ge=64)
    """Context length in tokens."""
    batch: int = Field(128, ge=1)
    """Tokens of a prompt computed at once (llama.cpp's -ub)."""
    cache_type_k: CacheType = "f16"
    """Number type of the key cache."""
    cache_type_v: CacheType = "f16"
    """Number type of the value cache."""
    flash_attention: Literal["auto", "on", "off"] = "auto"
    """llama.cpp's flash attention."""
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback is said on every screen."""
    port: int = Field(0, ge=0, le=65535)
    """Port; 0 takes a free one."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; empty leaves it to llama-server."""
