"""LoRA: PEFT's files and names, our own arithmetic.

PEFT builds the layers, so targets, patterns, rsLoRA and the adapter files are exactly its own. Each plain
LoRA layer then computes through one autograd function: the base product and scale * B A x in the base's type, no
activation ever converted. The fp32 master weights are copied to that type once a step; the backward pass
adds its gradients straight into the flat fp32 gradient. DoRA and other variants keep PEFT's own forward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bc250studio.errors import BadInput, clean

ADAPTER = "default"


class LoraFunction(torch.autograd.Function):
    """y = x W^T + bias + scale * (x A^T) B^T.

    x: [..., in]; W: [out, in] frozen; a: [rank, in] and b: [out, rank] in the base's type. The fp32 masters
    ``A`` and ``B`` are inputs only so that autograd calls the backward, which adds into ``A.grad``, ``B.grad``.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, W: Tensor, bias: Tensor | None, A: Tensor, B: Tensor, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y = rows @ W.t() if bias is None else torch.addmm(bias, rows, W.t())
        h = rows @ a.t()
        y.addmm_(h, b.t(), alpha=scale)
        ctx.save_for_backward(rows, W, a, b, h)
        ctx.masters, ctx.scale, ctx.shape = (A, B), scale, x.shape
        return y.view(*x.shape[:-1], W.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, W, a, b, h = ctx.saved_tensors
        A, B = ctx.masters
        d = gradients[0].reshape(-1, W.shape[0])
        g = d @ b
        add_product(B.grad, d, h, ctx.scale)
        add_product(A.grad, g, x, ctx.scale)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = d @ W
            dx.addmm_(g, a, alpha=ctx.scale)
            dx = dx.view(ctx.shape)
        return dx, None, None, None, None, None, None, None


def add_product(total: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    """total += scale * left^T right, where ``total`` is fp32 whatever the type of the product."""
    if total.dtype is left.dtype:
        total.addmm_(left.t(), right, alpha=scale)
    else:
        total.add_(left.t() @ right, alpha=scale)


def _fast_class() -> type:
    from peft.tuners.lora import Linear

    class FastLinear(Linear):  # type: ignore[misc, valid-type]
        """PEFT's LoRA layer, names and files included, with our forward."""

        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if self.disable_adapters or self.merged or args or kwargs:
                return super().forward(x, *args, **kwargs)
            base = self.base_layer
            A, B = self.lora_A[ADAPTER].weight, self.lora_B[ADAPTER].weight
            a, b = self.cast
            scale = self.scaling[ADAPTER]
            dropout = self.lora_dropout[ADAPTER]
            if self.training and isinstance(dropout, nn.Dropout):
                y = nn.functional.linear(x, base.weight, base.bias)
                return y + LowRank.apply(dropout(x), A, B, a, b, scale)
            return LoraFunction.apply(x, base.weight, base.bias, A, B, a, b, scale)

        @property
        def cast(self) -> tuple[Tensor, Tensor]:
            """A and B in the base's type: the flat copy's views while training, else made on the spot."""
            known = self.__dict__.get("_cast")
            if known is not None:
                return known
            dtype = self.base_layer.weight.dtype
            return self.lora_A[ADAPTER].weight.detach().to(dtype), self.lora_B[ADAPTER].weight.detach().to(dtype)

    return FastLinear


class LowRank(torch.autograd.Function):
    """scale * (x A^T) B^T alone, for the case in which dropout gives the adapter another input than the base."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, A: Tensor, B: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        h = rows @ a.t()
        ctx.save_for_backward(rows, a, b, h)
        ctx.masters, ctx.scale, ctx.shape = (A, B), scale, x.shape
        return (h @ b.t()).mul_(scale).view(*x.shape[:-1], b.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, a, b, h = ctx.saved_tensors
        A, B = ctx.masters
        d = gradients[0].reshape(-1, b.shape[0])
        g = d @ b
        add_product(B.grad, d, h, ctx.scale)
        add_product(A.grad, g, x, ctx.scale)
        return (g @ a).mul_(ctx.scale).view(ctx.shape), None, None, None, None, None


def attach(model: Any, settings: Any, seed: int, start_from: Path | None = None) -> Any:
    """Put a LoRA on ``model``; returns PEFT's model. ``settings`` is the profile's [adapter] section.

    Start values come from ``seed``. With ``start_from`` (a PEFT folder) rank, targets and weights are its own.

    Raises:
        BadInput: the targets name no layer, or the earlier adapter does not fit this model.
    """
    from peft import LoraConfig, PeftModel, get_peft_model

    try:
        if start_from is not None:
            wrapped = PeftModel.from_pretrained(model, str(start_from), is_trainable=True)
        else:
            targets = settings.targets
            config = LoraConfig(
                r=settings.rank,
                lora_alpha=settings.alpha,  # type: ignore[arg-type]
                lora_dropout=settings.dropout,
                target_modules=targets if isinstance(targets, str) else list(targets),
                use_rslora=settings.rslora,
                use_dora=settings.dora,
                rank_pattern=dict(settings.rank_pattern),
                alpha_pattern=dict(settings.alpha_pattern),  # type: ignore[arg-type]
                modules_to_save=list(settings.modules_to_save) or None,
                task_type="CAUSAL_LM",
            )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                wrapped = get_peft_model(model, config)
    except (ValueError, RuntimeError, OSError, KeyError) as error:
        what = f"The adapter in {start_from}" if start_from else f"An adapter for {settings.targets!r}"
        raise BadInput(f"{what} does not fit this model: {clean(error, 300)}") from error
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    _speed_up(wrapped)
    return wrapped


def _speed_up(wrapped: Any) -> None:
    from peft.tuners.lora import Linear

    fast = _fast_class()
    for module in wrapped.modules():
        # Exactly PEFT's plain layer over a plain Linear: variants (DoRA), biases on B and quantised bases keep theirs.
        if (
            type(module) is Linear
            and type(module.base_layer) is nn.Linear
            and list(module.lora_A) == [ADAPTER]
            and ADAPTER not in module.lora_variant
            and not module.lora_bias.get(ADAPTER, False)
            and not module.fan_in_fan_out
        ):
            module.__class__ = fast


def fast_layers(model: Any) -> list[Any]:
    """Layers that compute through our function, in the model's order."""
    return [module for module in model.modules() if type(module).__name__ == "FastLinear"]


def save(wrapped: Any, folder: Path, base_name: str) -> None:
    """Write PEFT's adapter_config.json and adapter_model.safetensors into ``folder``.

    ``base_name`` goes into the config as the base model's name. Embeddings are never saved along: they are
    frozen unless named in modules_to_save.
    """
    for config in wrapped.peft_config.values():
        config.base_model_name_or_path = base_name
    wrapped.create_or_update_model_card = lambda output_dir: None  # an empty card; it costs more than the weights
    wrapped.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)
