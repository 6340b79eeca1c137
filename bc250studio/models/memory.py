"""What a model takes in memory, by part, from its numbers alone; no weights are loaded.

Serving: llama.cpp's buffers. Weights by type (bits a weight of its mixes), keys and values of every token of the
context, the buffers of one batch, the adapter, and the runtime. Checked against what llama-server itself reports
(tests/flows/test_board_fit.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from bc250studio.board.fit import Alternative, Estimate
from bc250studio.errors import BadInput, nearest
from bc250studio.models.describe import Description

MIB = 1 << 20

BITS_PER_WEIGHT: Mapping[str, float] = {
    "f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.52, "q6_k": 6.6, "q5_k_m": 5.75, "q5_k_s": 5.6, "q5_1": 6.0,
    "q5_0": 5.6, "q4_k_m": 4.96, "q4_k_s": 4.7, "q4_1": 5.1, "q4_0": 4.7, "q3_k_m": 4.05, "q3_k_s": 3.7, "q2_k": 3.2,
}  # fmt: skip
"""Bits a weight of whole files, output and embeddings at their own types included; MiniCPM5-2B's public files have
4.96 (Q4_K_M, 1.56 GB) and 8.52 (Q8_0, 2.68 GB)."""

BITS_PER_CACHE_VALUE: Mapping[str, float] = {
    "f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5, "iq4_nl": 4.5,
}  # fmt: skip
"""llama.cpp's block types: 32 values and a 16-bit scale (and a minimum for _1)."""

_RUNTIME_BYTES = 160 * MIB
_MILDER = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")


def cache_bytes_per_token(description: Description, key_type: str = "f16", value_type: str = "f16") -> float:
    """Bytes one token of context takes in all layers: layers × key/value heads × width × (key + value)."""
    bits = BITS_PER_CACHE_VALUE[key_type] + BITS_PER_CACHE_VALUE[value_type]
    return description.layers * description.kv_heads * description.head_dim * bits / 8


def adapter_parameters(description: Description, rank: int) -> int:
    """Numbers of a LoRA on all seven linear layers: rank × (inputs + outputs) of each."""
    d = description
    width, narrow = d.heads * d.head_dim, d.kv_heads * d.head_dim
    pairs = [(d.hidden, width), (d.hidden, narrow), (d.hidden, narrow), (width, d.hidden)]
    pairs += [(d.hidden, d.intermediate)] * 2 + [(d.intermediate, d.hidden)]
    return d.layers * rank * sum(a + b for a, b in pairs)


def serving(
    description: Description,
    *,
    quantisation: str = "q4_k_m",
    file_bytes: int | None = None,
    context: int = 4096,
    key_type: str = "f16",
    value_type: str = "f16",
    batch: int = 128,
    rank: int = 16,
) -> Estimate:
    """Memory of llama-server with one slot; ``file_bytes`` is the GGUF's size where there is one already.

    Raises:
        BadInput: an unknown type; names the nearest.
    """
    quantisation = quantisation.lower()
    for given, known in (
        (quantisation, BITS_PER_WEIGHT),
        (key_type, BITS_PER_CACHE_VALUE),
        (value_type, BITS_PER_CACHE_VALUE),
    ):
        if given not in known:
            raise BadInput(
                f"{given!r} is no type llama.cpp has here; there are {', '.join(known)}.{nearest(given, known)}"
            )
    weights = file_bytes if file_bytes is not None else _weights(description, quantisation)
    parts = _serving_parts(description, weights, context, key_type, value_type, batch, rank)
    return Estimate(
        f"serving {quantisation if file_bytes is None else 'the file'} with {context:,} tokens of context",
        parts,
        _serving_alternatives(description, quantisation, file_bytes, context, (key_type, value_type), batch, rank),
        f"the sliding window of {description.sliding_window:,} tokens is not counted on"
        if description.sliding_window
        else "",
    )


def _weights(description: Description, quantisation: str) -> int:
    stored = description.parameters
    if quantisation not in ("f32", "f16", "bf16", "q8_0") and description.tied:
        # A tied embedding is also the output matrix, which the mixes keep at q6_k or better.
        embedding = description.vocab * description.hidden
        return int(
            (stored - embedding) * BITS_PER_WEIGHT[quantisation] / 8
            + embedding * max(6.6, BITS_PER_WEIGHT[quantisation]) / 8
        )
    return int(stored * BITS_PER_WEIGHT[quantisation] / 8)


def _serving_parts(
    d: Description, weights: int, context: int, key_type: str, value_type: str, batch: int, rank: int
) -> dict[str, int]:
    scores = d.heads * batch * context * 4  # only without flash attention, which `auto` may leave out
    activations = batch * (2 * d.intermediate + 6 * d.hidden) * 4
    return {
        "weights": weights,
        "keys and values": int(context * cache_bytes_per_token(d, key_type, value_type)),
        "buffers of a batch": 2 * d.vocab * 4 + scores + activations,
        "adapter": adapter_parameters(d, rank) * 4 if rank else 0,
        "runtime": _RUNTIME_BYTES,
    }


def _serving_alternatives(
    d: Description,
    quantisation: str,
    file_bytes: int | None,
    context: int,
    cache: tuple[str, str],
    batch: int,
    rank: int,
) -> tuple[Alternative, ...]:
    """One knob at a time, the mildest first: cache type, context, type of the weights; then weights and context."""

    def total(weights: int, tokens: int, types: tuple[str, str]) -> int:
        return sum(_serving_parts(d, weights, tokens, *types, batch, rank).values())

    here = file_bytes if file_bytes is not None else _weights(d, quantisation)
    found = []
    if cache != ("q8_0", "q8_0") and BITS_PER_CACHE_VALUE[cache[0]] > 8.5:
        words = 'serve.cache_type_k = serve.cache_type_v = "q8_0"'
        found.append(Alternative(words, total(here, context, ("q8_0", "q8_0"))))
    shorter = [tokens for tokens in (32768, 16384, 8192, 4096, 2048) if tokens < context]
    found += [Alternative(f"serve.context = {tokens}", total(here, tokens, cache)) for tokens in shorter]
    smaller = [t for t in _MILDER if _weights(d, t) < 0.97 * here]
    found += [Alternative(f'export.quantisation = "{t}"', total(_weights(d, t), context, cache)) for t in smaller]
    for t in smaller:
        for tokens in shorter:
            words = f'export.quantisation = "{t}" with serve.context = {tokens}'
            found.append(Alternative(words, total(_weights(d, t), tokens, cache)))
    return tuple(found)
