"""What training takes in memory, by part, from a model's numbers and a profile; no weights are loaded.

The parts follow the engine (train/): frozen weights; adapters as flat fp32 values, gradient and AdamW's two states
with a copy in the base's type; what each decoder layer keeps of a token for the backward pass, by plan; one chunk
of logits; one layer's working space; the allocator's and the driver's share. What a layer keeps was read from the
autograd functions and is checked against autograd's own saved tensors, and the whole against an H200's measured
peaks (tests/unit/test_board_fit_training.py).
"""

from __future__ import annotations

from bc250studio.board.fit import GIB, Alternative, Estimate
from bc250studio.board.presets import Chip
from bc250studio.models.describe import Description
from bc250studio.models.memory import adapter_parameters
from bc250studio.profiles import Profile

ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
DRIVER = "driver"
"""The part that torch's allocator does not see, so that no measured peak of torch's holds it."""

_DRIVER_BYTES = int(0.45 * GIB)
"""Context, code objects and workspaces of a GPU runtime, outside torch's allocator."""

_PROCESS_BYTES = int(0.55 * GIB)
"""Python, torch and transformers themselves, where they share the memory (the demo on two cores peaks at 1.83 GiB)."""

_SLACK = 0.06
"""Share of reserved over allocated memory: peaks of 10.4 and 24.5 GiB reserved 11.1 and 24.8 on an H200."""

_HEAP_SLACK = 0.10
"""The same for the C library's heap: twelve points of ``bench fit`` (docs/performance.md) then lie within 8 %."""

_SLOTS = 2.2
"""Slot elements of a pass over its positions, for rows of mixed lengths (2.25 on 240 alpaca rows, train/layouts.py)."""

_QK_NORMS = ("qwen3", "gemma3", "gemma3_text", "olmo2", "smollm3_moe")


def kept_per_token(d: Description, plan: str, element: int, attention: str, rank: int) -> int:
    """Bytes one token keeps in one decoder layer until its backward pass.

    ``plan``: ``none``, ``light`` or ``layer``; ``element``: bytes of an activation; ``attention``: ``rows`` (one fused
    call a row, CPU), ``math`` (own two-product attention, gfx1013), ``rungs`` (a fused call a length) or ``varlen``
    (one fused call, keys repeated per head).

    light: the input and output of both norms (4 hidden), queries, keys and values, the attention's output, gate and
    up, the rank-sized products; none: the activation product too; layer: the layer's input alone.
    """
    if plan == "layer":
        return d.hidden * element
    wide, narrow = d.heads * d.head_dim, d.kv_heads * d.head_dim
    attended = {
        "rows": 3 * wide + 2 * narrow,  # q, k, v, the output and its copy in token order
        "math": int(_SLOTS * (wide + 2 * narrow)) + wide,  # q, k, v in slots, the output in token order
        "rungs": int(_SLOTS * (2 * wide + 2 * narrow)) + wide,  # the fused call keeps its output in slots too
        "varlen": 2 * wide + 2 * wide,  # q, output, and k and v repeated for every head
    }[attention]
    if d.model_type in _QK_NORMS:
        attended += wide + narrow
    kept = 4 * d.hidden + attended + 2 * d.intermediate + 7 * rank
    if plan == "none":
        kept += d.intermediate
    statistics = 4 * (2 + d.heads)
    return kept * element + statistics


def training(d: Description, profile: Profile, chip: Chip) -> Estimate:
    """Memory of a run of ``profile`` on ``chip``, with the settings that would take less, the mildest first."""
    plan = plan_of(profile, chip)
    tokens = min(profile.train.tokens_per_pass, profile.train.tokens_per_step)
    chunk, rank = profile.train.loss_chunk, profile.adapter.rank
    parts = _parts(d, profile, chip, plan, tokens, chunk, rank)
    kind = "full" if profile.adapter.kind == "full" else "LoRA"
    words = f"{kind} training of {tokens:,} tokens a pass (recompute {plan})"
    return Estimate(words, parts, _alternatives(d, profile, chip, plan, tokens, chunk, rank))


def plan_of(profile: Profile, chip: Chip) -> str:
    """The recompute plan a run begins with; ``auto`` computes nothing again on a CPU, and ``light`` on a GPU."""
    if profile.train.recompute != "auto":
        return profile.train.recompute
    return "none" if on_cpu(profile, chip) else "light"


def in_allocator(estimate: Estimate) -> int:
    """Bytes of ``estimate`` that torch's own peaks hold: all but the driver's."""
    return estimate.total_bytes - estimate.parts.get(DRIVER, 0)


def on_cpu(profile: Profile, chip: Chip) -> bool:
    """Does the CPU do the work, whatever chip is there?"""
    return chip.name == "cpu" or profile.model.device == "cpu"


def _element(profile: Profile, chip: Chip) -> int:
    if profile.model.precision != "auto":
        return ELEMENT_BYTES[profile.model.precision]
    if profile.adapter.kind == "full" or on_cpu(profile, chip):
        return 4
    return ELEMENT_BYTES[chip.preset.precision]


def _attention(profile: Profile, chip: Chip) -> str:
    if on_cpu(profile, chip):
        return "rows"
    if profile.train.attention in ("math16", "math32"):
        return "math"
    if chip.gfx:  # ROCm has no variable-length kernel
        return "rungs" if profile.train.attention == "flash" else "math"
    return "rungs" if profile.train.attention == "flash" else "varlen"


def _parts(
    d: Description, profile: Profile, chip: Chip, plan: str, tokens: int, chunk: int, rank: int
) -> dict[str, int]:
    element, attention = _element(profile, chip), _attention(profile, chip)
    full = profile.adapter.kind == "full"
    low_rank = 0 if full else rank
    parts = {"weights": d.parameters * element}
    if full:
        parts["gradients and AdamW"] = d.parameters * 12
    else:
        copy = element if element < 4 else 0
        parts["adapter and AdamW"] = adapter_parameters(d, rank) * (16 + copy)
    per_layer = kept_per_token(d, plan, element, attention, low_rank)
    parts["activations"] = tokens * (d.layers * per_layer + 2 * d.hidden * element)  # and around the layers
    # While one layer is computed backwards: its own activations again (plan layer) and gradients of the widest parts.
    working = tokens * (2 * d.intermediate + 2 * d.hidden) * element
    if plan == "layer":
        working += tokens * kept_per_token(d, "light", element, attention, low_rank)
    scores = 0
    if attention == "math":
        longest = min(profile.data.max_length, tokens)
        # probabilities, their gradient and the masked scores of all heads of the rows in a pass
        scores = 3 * d.heads * longest * tokens * (4 if profile.train.attention == "math32" else element)
    # The logits of a chunk in the base's type and in fp32 (fp32: twice, measured), beside a layer's widest moment.
    logits = min(chunk, tokens) * d.vocab * (element + 4 if element < 4 else 8)
    if on_cpu(profile, chip):
        # The C library's heap keeps what was freed in small pieces: the layer's work is still there beside the logits.
        parts["logits of a chunk"], parts["one layer's work"] = logits, working
    else:
        parts["logits of a chunk, or one layer's work"] = max(logits, working + scores)
    allocated = sum(parts.values()) - parts["weights"]
    if chip.apu or on_cpu(profile, chip):
        parts["Python and torch"] = _PROCESS_BYTES
    parts["allocator"] = int((_HEAP_SLACK if on_cpu(profile, chip) else _SLACK) * allocated)
    if not on_cpu(profile, chip):
        parts[DRIVER] = _DRIVER_BYTES
    return parts


def _alternatives(
    d: Description, profile: Profile, chip: Chip, plan: str, tokens: int, chunk: int, rank: int
) -> tuple[Alternative, ...]:
    """Recompute first (it costs time, nothing else), then smaller passes, then both; 16 bits before all on a GPU."""

    def total(settings: Profile, new_plan: str, new_tokens: int, new_chunk: int) -> int:
        return sum(_parts(d, settings, chip, new_plan, new_tokens, new_chunk, rank).values())

    order = ("none", "light", "layer")
    plans = [word for word in order if order.index(word) > order.index(plan)]
    passes = [size for size in (4096, 2048, 1024, 512, 256) if size < tokens]
    small = min(chunk, 256)
    found = []
    if profile.adapter.kind != "full" and _element(profile, chip) == 4 and not on_cpu(profile, chip):
        halves = profile.model_copy(update={"model": profile.model.model_copy(update={"precision": "fp16"})})
        found.append(Alternative('model.precision = "fp16"', total(halves, plan, tokens, chunk)))
        both = 'model.precision = "fp16" and train.recompute = "layer"'
        found.append(Alternative(both, total(halves, "layer", tokens, chunk)))
    found += [Alternative(f'train.recompute = "{word}"', total(profile, word, tokens, chunk)) for word in plans]
    found += [Alternative(f"train.tokens_per_pass = {size}", total(profile, plan, size, chunk)) for size in passes]
    for size in (tokens, *passes):
        smaller = f"train.tokens_per_pass = {size}, " if size < tokens else ""
        words = f'{smaller}train.recompute = "layer" and train.loss_chunk = {small}'
        found.append(Alternative(words, total(profile, "layer", size, small)))
    if profile.adapter.kind == "full":
        lora = profile.model_copy(update={"adapter": profile.adapter.model_copy(update={"kind": "lora"})})
        found.append(Alternative('adapter.kind = "lora"', total(lora, plan, tokens, chunk)))
    return tuple(a for a in found if a.total_bytes < total(profile, plan, tokens, chunk))
