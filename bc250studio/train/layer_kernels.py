"""Puts the light functions (light.py) and Liger's kernels into a model, module by module, after a trial.

A norm or MLP is recognised by what it is made of and then tried on random numbers: only where the result is the
same is it replaced, so an architecture with its own twist keeps its own code. Rotary embedding is looked up in the
architecture's module; the replacement there acts only during a pass of ours.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from bc250studio.train import attention
from bc250studio.train.light import Elementwise, GatedMlp, GatedProduct, Projection, RmsNorm

_ACTIVATIONS = {
    "SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh",
    "GELU": "gelu", "GELUActivation": "gelu",
}  # fmt: skip


def triton_works(device: torch.device) -> str | None:
    """None when Triton compiles for ``device``, else why not."""
    if device.type != "cuda":
        return "Triton needs a GPU"
    if torch.version.hip is not None and not _triton_supports_amd(device):
        return "Triton has no backend for this chip"
    if torch.version.hip is None and torch.cuda.get_device_capability(device)[0] < 7:
        return "Triton needs compute capability 7.0"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed"
    return None


def liger_works(device: torch.device) -> str | None:
    """None when Liger's kernels can be used on ``device``, else why not."""
    reason = triton_works(device)
    if reason is not None:
        return reason
    try:
        import liger_kernel.ops.rms_norm
        import liger_kernel.ops.rope
        import liger_kernel.ops.swiglu  # noqa: F401
    except ImportError as error:
        return f"liger-kernel is not installed ({error.name or 'import failed'})"
    except Exception as error:
        return f"liger-kernel fails to import ({type(error).__name__})"
    return None


def _triton_supports_amd(device: torch.device) -> bool:
    # Triton's AMD backend begins with gfx90a and RDNA 3 (gfx11): gfx1013 compiles to nothing that runs.
    name = str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", ""))
    return name.startswith(("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"))


def install(model: Any, wanted: str, device: torch.device) -> dict[str, Any]:
    """Replace what can be replaced; counts and the reason where Liger is not used.

    ``wanted``: the profile's train.layer_kernels. A module whose ``keep_product`` is set (recompute.py) keeps its
    activation product.
    """
    report: dict[str, Any] = {"norms": 0, "mlps": 0, "rotary": False, "liger": False}
    if wanted == "off":
        return report
    reason = "own was asked for" if wanted == "own" else liger_works(device)
    liger = reason is None
    report |= {"liger": liger, "why_not_liger": reason}
    for module in model.modules():
        if _is_norm(module):
            report["norms"] += _replace_norm(module, liger)
        elif all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
            report["mlps"] += _replace_mlp(module, liger)
    if liger:
        report["rotary"] = _replace_rotary(model)
    return report


# -- norms -----------------------------------------------------------------------------------------------------


def _is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return "RMSNorm" in type(module).__name__ and isinstance(weight, Tensor) and weight.dim() == 1


@torch.no_grad()
def _replace_norm(module: Any, liger: bool) -> int:
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(eps, float) or "forward" in module.__dict__:
        return 0
    weight = module.weight
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, len(weight), generator=generator).to(weight.device, weight.dtype) * 3
    truth = module(x).float()
    for gemma in (False, True):
        tried = RmsNorm.apply(x, weight, eps, gemma).float()
        if torch.allclose(tried, truth, rtol=1e-5 if weight.dtype is torch.float32 else 1e-2, atol=1e-6):
            module.forward = _norm_forward(module, eps, gemma, liger)
            return 1
    return 0


def _norm_forward(module: Any, eps: float, gemma: bool, liger: bool) -> Any:
    if liger:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        offset, casting = (1.0, "gemma") if gemma else (0.0, "llama")
        # not in place: what comes back into a norm after a residual is still needed by the other branch
        return lambda x: LigerRMSNormFunction.apply(x, module.weight, eps, offset, casting, False)
    return lambda x: RmsNorm.apply(x, module.weight, eps, gemma)


# -- gated MLPs ------------------------------------------------------------------------------------------------


def _replace_mlp(module: Any, liger: bool) -> int:
    kind = _ACTIVATIONS.get(type(module.act_fn).__name__)
    if kind is None or "forward" in module.__dict__:
        return 0
    act = Elementwise(kind, liger and kind == "silu")
    layers = (module.gate_proj, module.up_proj, module.down_proj)
    if not _same_result(module, act):
        return 0

    def forward(x: Tensor) -> Tensor:
        parts = [projection(layer, module.training) for layer in layers]
        gate, up, down = parts
        if gate is None or up is None or down is None:
            product = GatedProduct.apply(layers[0](x), layers[1](x), act)
            return layers[2](product)
        masters = [m for p in (gate, up, down) for m in (p.A, p.B) if m is not None]
        keep = module.__dict__.get("keep_product", False)
        return GatedMlp.apply(x, gate, up, down, act, keep, *masters)

    module.forward = forward
    return 1


@torch.no_grad()
def _same_result(module: Any, act: Elementwise) -> bool:
    """Is the module's forward down(act(gate) * up), and nothing more?"""
    layer = module.gate_proj
    weight = layer.weight if isinstance(layer, nn.Linear) else layer.base_layer.weight
    x = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.device, weight.dtype)
    truth = module(x).float()
    tried = module.down_proj(act.product(module.gate_proj(x), module.up_proj(x))).float()
    return torch.allclose(tried, truth, rtol=1e-2, atol=1e-5 + 2e-3 * float(truth.abs().max()))


def projection(layer: Any, training: bool) -> Projection | None:
    """A layer for ``GatedMlp``: frozen Linear without bias, plain or with our LoRA; None for anything else."""
    if type(layer) is nn.Linear:
        return Projection(layer.weight) if layer.bias is None and not layer.weight.requires_grad else None
    if type(layer).__name__ != "FastLinear" or layer.disable_adapters or layer.merged:
        return None
    if layer.base_layer.bias is not None or (training and isinstance(layer.lora_dropout["default"], nn.Dropout)):
        return None
    a, b = layer.cast
    A, B = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    return Projection(layer.base_layer.weight, A, B, a, b, layer.scaling["default"])


# -- rotary ----------------------------------------------------------------------------------------------------


def _replace_rotary(model: Any) -> bool:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    place = sys.modules[type(base).__module__]
    original = getattr(place, "apply_rotary_pos_emb", None)
    if original is None:
        return False
    if getattr(original, "bc250studio", False):
        return True
    from liger_kernel.ops.rope import LigerRopeFunction

    device = next(base.parameters()).device
    if not _same_rotation(original, LigerRopeFunction, device):
        return False

    def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **named: Any) -> Any:
        # Only inside a pass of ours: another model of the same family in this process keeps its own code.
        if attention.active() is None or not q.is_cuda or rest or named or cos.shape[-1] != q.shape[-1]:
            return original(q, k, cos, sin, *rest, **named)
        return LigerRopeFunction.apply(q, k, cos, sin)

    rotary.bc250studio = True  # type: ignore[attr-defined]
    place.apply_rotary_pos_emb = rotary  # type: ignore[attr-defined]
    return True


@torch.no_grad()
def _same_rotation(original: Any, liger: Any, device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 5, 32, generator=generator).to(device) for heads in (4, 2))
    half = torch.randn(1, 5, 16, generator=generator).to(device)
    cos, sin = torch.cat((half, half), -1).cos(), torch.cat((half, half), -1).sin()
    try:
        truth = original(q.clone(), k.clone(), cos, sin)
        tried = liger.apply(q.clone(), k.clone(), cos, sin)
    except Exception:
        return False
    return all(torch.allclose(a, b, atol=1e-4) for a, b in zip(truth, tried, strict=True))
