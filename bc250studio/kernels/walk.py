"""The one module here besides proof.py that needs torch, run as a child: ``python -m bc250studio.kernels.walk``.

It builds a model on the meta device (no weights, no memory), lists its linear layers and attention, and
counts one whole training step with torch's own FLOP counter, so that the shapes derived from the list can
be checked against somebody else's arithmetic. Input and output are JSON on stdin and stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def structure(config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The meta model of an HF ``config`` and what multiplies in it.

    Returns the model and ``{"linears": [{name, in, out, layers, first}], "attention": [...], "head": {...},
    "hidden", "layers", "parameters", "notes"}``. ``first`` counts the layers that read the embedding itself.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = config.get("model_type", "")
    rest = {
        key: value
        for key, value in config.items()
        if key not in ("model_type", "architectures", "auto_map", "torch_dtype")
    }
    settings = AutoConfig.for_model(kind, **rest)
    settings._attn_implementation = "eager"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings, attn_implementation="eager", dtype=torch.float32)
    text = settings.get_text_config()
    head = model.get_output_embeddings()
    linears: dict[tuple[str, int, int], dict[str, Any]] = {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or module is head:
            continue
        parts = name.split(".")
        leaf = parts[-1]
        rows, columns = module.weight.shape
        entry = linears.setdefault(
            (leaf, columns, rows),
            {"name": leaf, "in": columns, "out": rows, "layers": 0, "first": 0, "sibling": name.rpartition(".")[0]},
        )
        entry["layers"] += 1
    notes = []
    odd = sorted({type(m).__name__ for n, m in model.named_modules() if _stacked(m)})
    if odd:
        notes.append(f"{', '.join(odd)}: products of routed experts depend on the data and are not in this list")
    layers = int(text.num_hidden_layers)
    heads = int(text.num_attention_heads)
    head_dim = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    for entry in linears.values():
        # q, k and v of layer 0 (or one fused projection) read the frozen embedding: no input gradient there.
        entry["first"] = (
            1 if entry["name"] in ("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn", "query_key_value") else 0
        )
        del entry["sibling"]
    return model, {
        "linears": sorted(linears.values(), key=lambda e: (e["name"], e["in"], e["out"])),
        "attention": {
            "layers": layers,
            "heads": heads,
            "kv_heads": int(getattr(text, "num_key_value_heads", None) or heads),
            "head_dim": head_dim,
        },
        "head": {"in": int(text.hidden_size), "out": int(text.vocab_size), "tied": bool(settings.tie_word_embeddings)},
        "parameters": sum(p.numel() for p in model.parameters()),
        "notes": notes,
    }


def _stacked(module: Any) -> bool:
    """Whether a module holds matrices of several experts in one parameter."""
    return any(p.dim() == 3 for _, p in module.named_parameters(recurse=False))


def count(model: Any, tokens: int, rank: int, full: bool, targets: list[str] | None) -> int:
    """FLOPs of one step over a row of ``tokens`` positions, by ``torch.utils.flop_counter``.

    Low-rank pairs beside the target layers (``full``: all weights trained instead), all positions labelled,
    no recompute. The model is on the meta device: shapes only.
    """
    import torch
    from torch.nn import functional
    from torch.utils.flop_counter import FlopCounterMode

    head = model.get_output_embeddings()
    for parameter in model.parameters():
        parameter.requires_grad_(full)
    for name, module in model.named_modules():
        if full or not isinstance(module, torch.nn.Linear) or module is head:
            continue
        if targets is not None and name.rpartition(".")[2] not in targets:
            continue
        rows, columns = module.weight.shape
        down = torch.empty(rank, columns, device="meta", requires_grad=True)
        up = torch.empty(rows, rank, device="meta", requires_grad=True)

        def forward(x: Any, module: Any = module, down: Any = down, up: Any = up) -> Any:
            base = functional.linear(x, module.weight, module.bias)
            return base + 2.0 * functional.linear(functional.linear(x, down), up)

        module.forward = forward
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    # A ready mask: building one asks for values, which meta tensors have not.
    mask: Any = torch.zeros(1, 1, tokens, tokens, device="meta")
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if len(kinds) > 1 or "sliding_attention" in kinds:
        mask = dict.fromkeys(kinds, mask)
    positions = torch.arange(tokens, device="meta")[None]
    model.train()
    counter = FlopCounterMode(display=False)
    with counter:
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), ids.view(-1)).backward()
    return int(counter.get_total_flops())


class Recorder:
    """Notes every matrix product torch dispatches, as rocBLAS would see it. A context manager.

    A row-major result C[n,m] = A[n,k] B[k,m] is, column-major, C'[m,n] = B'[m,k] A'[k,n]: M, N, K = m, n, k,
    op(first) is N when B is stored row by row and T when it is a transposed view; op(second) likewise for A.
    """

    NAMES = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int, int, int, str, str], int] = {}
        self._mode: Any = None

    def __enter__(self) -> Recorder:
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder, aten = self, torch.ops.aten
        operands = {
            aten.mm.default: (0, 1), aten.mm.out: (0, 1), aten.addmm.default: (1, 2), aten.addmm.out: (1, 2),
            aten.addmm_.default: (1, 2), aten.bmm.default: (0, 1), aten.bmm.out: (0, 1),
            aten.baddbmm.default: (1, 2), aten.baddbmm_.default: (1, 2), aten.baddbmm.out: (1, 2),
        }  # fmt: skip

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func in operands:
                    first, second = operands[func]
                    recorder.add(args[first], args[second])
                return func(*args, **(kwargs or {}))

        self._mode = Mode()
        self._mode.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._mode.__exit__(*details)

    def add(self, a: Any, b: Any) -> None:
        """Note one product of tensors [.., n, k] and [.., k, m]."""
        batch = a.shape[0] if a.dim() == 3 else 1
        n, k = a.shape[-2:]
        m = b.shape[-1]
        layout = ("N" if b.stride(-1) == 1 else "T") + ("N" if a.stride(-1) == 1 else "T")
        key = (int(m), int(n), int(batch), int(k), self.NAMES.get(str(a.dtype), str(a.dtype)), layout)
        self.counts[key] = self.counts.get(key, 0) + 1


MARK = "bc250studio-step"
"""A line on stderr before, between and after two steps, so that rocBLAS's own lines can be told apart."""


def two_steps(profile_text: str) -> dict[str, Any]:
    """Two optimiser steps of a profile in the engine's fixed sizes with math attention; the second is recorded.

    Returns ``{"device", "rocblas", "recorded": [{m, n, batch, k, dtype, layout, count}]}``. Eager, since a replayed
    device graph calls no library.
    """
    import torch

    from bc250studio import data, profiles
    from bc250studio.models import find, load
    from bc250studio.train.engine import Trainer

    changes = {"train.steps": 2, "train.attention": "math16", "train.graph": "off", "train.layer_kernels": "own"}
    profile = profiles.from_text(profile_text, "the profile", overrides=changes).profile
    device = load.choose_device(profile.model.device)
    source = find.find(profile.model.base, profile.model.revision)
    rows = data.prepare(profile, source).train
    model = load.load(source, dtype=load.choose_dtype(profile.model.precision, device), device=device)
    trainer = Trainer(model, rows, profile.train, profile.adapter, sizes="fixed")
    trainer.step()
    _mark(device)
    with Recorder() as recorder:
        trainer.step()
    _mark(device)
    names = ("m", "n", "batch", "k", "dtype", "layout")
    known = [dict(zip(names, key, strict=True), count=count) for key, count in recorder.counts.items()]
    recorded = [entry for entry in known if entry["dtype"] in Recorder.NAMES.values()]
    return {
        "device": str(device),
        "rocblas": device.type == "cuda" and torch.version.hip is not None,
        "recorded": recorded,
    }


def _mark(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    print(MARK, file=sys.stderr, flush=True)


def main() -> int:
    """Read a request from stdin, print the answer as JSON.

    ``{config, tokens, rank, full, targets, count}`` -> the structure; ``{profile}`` -> two steps.
    """
    request = json.load(sys.stdin)
    if "profile" in request:
        print(json.dumps(two_steps(request["profile"])))
        return 0
    model, found = structure(request["config"])
    found["flops_counted"] = {}
    for tokens in request["tokens"] if request["count"] else []:
        try:
            found["flops_counted"][str(tokens)] = count(
                model, tokens, request["rank"], bool(request["full"]), request["targets"]
            )
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            found["notes"].append(f"torch's FLOP counter cannot follow this model: {str(error).splitlines()[0][:160]}")
            break
        model, _ = structure(request["config"])
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
