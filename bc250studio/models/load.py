"""Weights into memory: Hugging Face folders and dequantised GGUF files as a frozen torch model.

One of the few places where torch may be imported. Everything else about a model is known without it
(``describe``, ``tokenizer``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from bc250studio.errors import BadInput, clean

FP16_MAX = 65504.0
"""Largest finite fp16 number."""
FP16_LEAST = 2.0**-25
"""Non-zero magnitudes up to this round to zero in fp16 (half of the smallest subnormal)."""


class Source(Protocol):
    """What loading needs to know of ``models.find.ModelSource``."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def gguf(self) -> Path | None: ...
    @property
    def kind(self) -> str: ...


@dataclass(frozen=True)
class Conversion:
    """What happened to the checkpoint's numbers on their way to the training type."""

    weights: int
    overflowed: int
    vanished: int
    first_overflow: str = ""

    def sentence(self, dtype: torch.dtype) -> str:
        """For the event log."""
        return (
            f"{self.weights:,} weights were loaded as {str(dtype).removeprefix('torch.')}: "
            f"{self.overflowed:,} overflowed, {self.vanished:,} became zero."
        )


def choose_device(wanted: str) -> torch.device:
    """``auto`` takes the first CUDA or ROCm device, else the CPU.

    Raises:
        BadInput: the wanted device is not there.
    """
    if wanted == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise BadInput(f"model.device = {clean(wanted, 40)!r} is no device; use auto, cpu, cuda or cuda:1.") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise BadInput(
                f"model.device = {wanted!r}, but this Python's torch sees {count} GPUs; see bc250studio doctor."
            )
    return device


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Type of the frozen base.

    ``auto``: fp32 on the CPU (no 16-bit matrix units there); fp16 on ROCm, where bf16 products of
    gfx1013 are emulated and fp16 ones are not; bf16 on other GPUs that have it, which needs no loss scaling.
    """
    named = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    if precision != "auto":
        return named[precision]
    if device.type != "cuda":
        return torch.float32
    if torch.version.hip is None and torch.cuda.is_bf16_supported():
        return torch.bfloat16
    return torch.float16


def load(
    source: Source,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    trust_remote_code: bool = False,
    attention: str | None = None,
) -> Any:
    """The frozen base model in evaluation mode, no parameter requiring a gradient.

    ``source.gguf`` without a config.json beside it (the demo) is dequantised in fp32 and then cast. The
    conversion's counts stand in ``model.conversion``.

    Raises:
        BadInput: unreadable files, an architecture transformers does not know, or weights beyond the
            range of fp16 when that type is wanted.
    """
    model = _from_pretrained(source, attention, trust_remote_code)
    return _settle(model, dtype, torch.device(device), source.name)


def load_served(
    source: Source, gguf: Path, *, dtype: torch.dtype, device: torch.device | str, trust_remote_code: bool = False
) -> Any:
    """The same architecture with the weights of ``gguf``, dequantised: what llama-server computes with.

    Raises:
        BadInput: the file lacks a tensor the architecture needs, or has another shape.
    """
    if source.gguf is not None and Path(source.gguf).resolve() == Path(gguf).resolve() and _gguf_only(source):
        return load(source, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    model = _from_pretrained(source, None, trust_remote_code)
    _fill(model, gguf)
    return _settle(model, dtype, torch.device(device), gguf.name)


@torch.no_grad()
def _fill(model: Any, gguf: Path) -> None:
    """Overwrite every weight of ``model`` with the one in ``gguf``."""
    from bc250studio.models.gguf_file import GgufFile
    from bc250studio.models.gguf_map import read_model

    parameters = dict(model.named_parameters())  # a tied output layer is listed once, as the embedding
    with GgufFile(gguf) as file:
        for name, array in read_model(file, parameters):
            parameter = parameters[name]
            if tuple(array.shape) != tuple(parameter.shape):
                raise BadInput(
                    f"{clean(gguf)} has another shape of {clean(name, 120)} ({list(array.shape)}) than the model "
                    f"({list(parameter.shape)}); it is the file of another model."
                )
            parameter.data = torch.from_numpy(array)


def _gguf_only(source: Source) -> bool:
    return source.gguf is not None and not (source.folder / "config.json").is_file()


def _from_pretrained(source: Source, attention: str | None, trust_remote_code: bool) -> Any:
    import transformers

    # Progress bars and warnings of the loader belong into the log, not into a terminal's screen.
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if attention is not None:  # None: the best the architecture supports, by transformers' own choice
        options["attn_implementation"] = attention
    try:
        if _gguf_only(source):
            assert source.gguf is not None
            name = source.gguf.name
            options["gguf_file"] = name
            options["dtype"] = torch.float32
            config_class = getattr(transformers, "GgufConfig", None)
            if config_class is not None:
                options["quantization_config"] = config_class(gguf_file=name, dequantize=True)
            return transformers.AutoModelForCausalLM.from_pretrained(str(source.gguf.parent), **options)
        # The checkpoint's own type first: a silent cast while loading would hide overflows.
        return transformers.AutoModelForCausalLM.from_pretrained(str(source.folder), dtype="auto", **options)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadInput(f"The model {clean(source.name)} cannot be loaded: {clean(error, 300)}") from error


@torch.no_grad()
def _settle(model: Any, dtype: torch.dtype, device: torch.device, name: str) -> Any:
    model.conversion = convert(model, dtype, device)
    if model.conversion.overflowed:
        raise BadInput(
            f"{model.conversion.overflowed} weights of {clean(name)} are beyond the range of fp16 "
            f"(first in {model.conversion.first_overflow}); set model.precision to bf16 or fp32."
        )
    model.to(device)  # buffers such as rotary frequencies; they keep their own type
    model.requires_grad_(False)
    model.config.use_cache = False
    return model.eval()


@torch.no_grad()
def convert(model: Any, dtype: torch.dtype, device: torch.device) -> Conversion:
    """Cast and move ``model`` tensor by tensor (never two whole copies), counting what fp16 cannot hold."""
    weights = overflowed = vanished = 0
    first = ""
    for label, parameter in model.named_parameters():
        weights += parameter.numel()
        if dtype is torch.float16 and parameter.dtype is not torch.float16:
            size = parameter.abs()
            # A NaN compares false with everything: count it as an overflow too.
            over = int((~(size <= FP16_MAX)).sum())
            vanished += int(((size <= FP16_LEAST) & (size > 0)).sum())
            if over and not first:
                first = label
            overflowed += over
        parameter.data = parameter.data.to(device=device, dtype=dtype)
    return Conversion(weights, overflowed, vanished, first)
