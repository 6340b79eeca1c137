"""A proof failed: which part is at fault? Each suspect is tested alone, on a few dozen of the same positions.

base alone wrong -> base file or backend; no change at all -> the adapter is ignored; another scale fits ->
a factor; q/k rows in the other order fit -> the rotary permutation; else the adapter file is compared with
the trained one, tensor by tensor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bc250studio.errors import StudioError, clean
from bc250studio.jobs.progress import Progress, silent
from bc250studio.models.gguf_file import GgufFile
from bc250studio.models.gguf_map import permute, unpermute
from bc250studio.serve import divergence, server
from bc250studio.serve.binary import Binary, choose_device
from bc250studio.serve.prove import Proof, collect, guard_token, spread
from bc250studio.serve.reference import ADAPTER, BASE, Reference
from bc250studio.serve.server import Plan
from bc250studio.serve.talk import Talk

SAMPLE, COARSE = 48, 12
SCALES = (0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 2.0, 4.0, 8.0, 16.0)


def find_cause(
    proof: Proof,
    talk: Talk,
    reference: Reference,
    plan: Plan,
    binary: Binary,
    trained: Path | None = None,
    progress: Progress = silent,
) -> str:
    """One sentence that names the likely cause of a failed proof; empty when the proof passed.

    ``trained`` is the PEFT folder the adapter file was made from; ``plan`` and ``binary`` say how the server
    was started, so that a suspect can be tested on a second one.
    """
    if proof.ids_equal is False:
        return f"template or tokenizer: {proof.ids_note}"
    if not proof.base_same:
        return _base(proof, reference, plan, binary, progress)
    if not proof.same or proof.ignored:
        if proof.merged:
            return _merged(reference, plan)
        if proof.ignored:
            return "the adapter is ignored: base and tuned answer the same, although training changed them"
        found = _adapter(proof, talk, reference, plan, binary, progress)
        found = found or (_file(plan, trained) if trained is not None else "")
        found = found or _device(proof, reference, plan, binary, progress)
        return found or "the adapter is applied, but neither a factor nor the q/k permutation explains the difference"
    if proof.closing_stops is False:
        return "end of answer: the server does not stop at the token with which training closed every answer"
    return ""


def _adapter(proof: Proof, talk: Talk, reference: Reference, plan: Plan, binary: Binary, progress: Progress) -> str:
    """Factor or permutation? Asked of the server itself, or of the CPU backend where the device is the CPU anyway."""
    if choose_device(binary, plan.device)[1].cpu_based:
        plan = replace(plan, device="cpu")
        with tempfile.TemporaryDirectory(prefix="bc250studio-bisect-") as folder:
            try:
                second = server.start(Path(folder), replace(plan, port=0, slots=1), binary)
                return _search(proof, second.talk(), reference, plan, binary, progress)
            finally:
                server.stop_folder(Path(folder))
    return _search(proof, talk, reference, plan, binary, progress)


def _search(proof: Proof, talk: Talk, reference: Reference, plan: Plan, binary: Binary, progress: Progress) -> str:
    rows = spread(reference.count, SAMPLE)
    judge = reference.variants[ADAPTER]
    guard = guard_token(talk)

    def at(scale: float, chosen: list[int]) -> float:
        tops = collect(talk, reference, scale, guard, chosen, progress, f"trying the adapter at scale {scale:.3g}")
        return divergence.distance(judge, tops, chosen).mean_kl

    if at(1.0, rows) <= proof.limit_kl:
        return ""  # the same files are right here: not the adapter, the device
    few = spread(reference.count, COARSE)
    scale = best_scale(lambda scale: at(scale, few))
    kl, plain = at(scale, rows), at(1.0, rows)
    if kl <= max(proof.limit_kl, 0.1 * plain):
        return (
            f"scale: the adapter acts {_factor(1 / scale)} as strongly as it was trained "
            f"(at scale {scale:.3g} the KL falls from {plain:.4f} to {kl:.4f})"
        )
    named = _permutation(reference, plan, binary, rows, proof.limit_kl, plain, progress)
    if named:
        return named
    if kl < 0.5 * plain:
        return f"scale: no factor fits exactly, {_factor(1 / scale)} comes nearest (KL {kl:.4f} against {plain:.4f})"
    return ""


def best_scale(at: Callable[[float], float]) -> float:
    """The scale with the smallest KL: a coarse sweep by octaves, then halved steps around the best."""
    measured = {scale: at(scale) for scale in SCALES}
    step = 1.4
    while step > 1.03:
        best = min(measured, key=lambda scale: measured[scale])
        for scale in (best / step, best * step):
            if not any(abs(scale / known - 1) < 0.02 for known in measured):
                measured[scale] = at(scale)
        step = step**0.5
    return min(measured, key=lambda scale: measured[scale])


def _factor(factor: float) -> str:
    return f"{factor:.3g} times"


def _permutation(
    reference: Reference,
    plan: Plan,
    binary: Binary,
    rows: list[int],
    limit_kl: float,
    plain: float,
    progress: Progress,
) -> str:
    """Serve the adapter with q and k reordered either way; if that fits, the exporter got the layout wrong."""
    if plan.adapter is None:
        return ""
    for reorder, words in ((permute, "were not reordered"), (unpermute, "were reordered")):
        with tempfile.TemporaryDirectory(prefix="bc250studio-bisect-") as folder:
            changed = Path(folder) / "adapter.gguf"
            if not reorder_qk(plan.adapter, plan.model, changed, reorder):
                return ""
            progress("trying q and k in the other order", None, None)
            kl = _on_second_server(Path(folder), replace(plan, adapter=changed), binary, reference, ADAPTER, rows)
            if kl is not None and kl <= max(limit_kl, 0.1 * plain):
                return (
                    f"permutation: the rows of q and k {words} for this model's rotary layout "
                    f"(the other way the KL falls from {plain:.4f} to {kl:.4f})"
                )
    return ""


def reorder_qk(adapter: Path, base: Path, out: Path, reorder: Callable[[np.ndarray, int], np.ndarray]) -> bool:
    """Write ``adapter`` with the rows of q's and k's B reordered; False when it has none.

    Raises:
        BadInput: a file is damaged, or heads do not divide the rows.
    """
    with GgufFile(base) as file:
        heads = int(file.get(f"{file.arch}.attention.head_count", 0) or 0)
        kv_heads = int(file.get(f"{file.arch}.attention.head_count_kv", heads) or heads)
    blob = bytearray(adapter.read_bytes())
    changed = False
    with GgufFile(adapter) as file:
        for name, tensor in file.tensors.items():
            side = (
                "q" if name.endswith("attn_q.weight.lora_b") else "k" if name.endswith("attn_k.weight.lora_b") else ""
            )
            if not side or not heads:
                continue
            rows = tensor.shape[0]
            begin, size = tensor.offset, tensor.size_bytes
            block = np.frombuffer(bytes(blob[begin : begin + size]), np.uint8).reshape(rows, -1)
            blob[begin : begin + size] = reorder(block, heads if side == "q" else kv_heads).tobytes()
            changed = True
    if changed:
        out.write_bytes(blob)
    return changed


def _on_second_server(
    folder: Path, plan: Plan, binary: Binary, reference: Reference, variant: str, rows: list[int], scale: float = 1.0
) -> float | None:
    """Mean KL of a server started just for this; None when it does not start."""
    try:
        second = server.start(folder, replace(plan, port=0, slots=1, scale=scale), binary)
    except StudioError:
        return None
    try:
        talk = server.steady_talk(second, replace(plan, port=0, slots=1), binary)
        talk.scale_now = scale
        tops = collect(talk, reference, scale, guard_token(talk), rows)
        return divergence.distance(reference.variants[variant], tops, rows).mean_kl
    finally:
        server.stop_folder(folder)


def _base(proof: Proof, reference: Reference, plan: Plan, binary: Binary, progress: Progress) -> str:
    """The base alone is wrong: another file, or a device that computes wrongly?"""
    assert proof.base is not None
    said = f"base: without the adapter the server is wrong already (KL {proof.base.mean_kl:.4f})"
    wanted = reference.facts.get("gguf_sha256")
    if wanted:
        from bc250studio.export.exported import sha256_of

        if sha256_of(plan.model) != wanted:
            return f"{said}, and {plan.model} is not the file the reference was made with: wrong base file"
    right = _right_on_cpu(reference, plan, binary, BASE, proof.limit_kl, progress)
    if right:
        return f"{said}, {right}"
    return f"{said}: wrong base file, or a backend that computes wrongly"


def _device(proof: Proof, reference: Reference, plan: Plan, binary: Binary, progress: Progress) -> str:
    right = _right_on_cpu(reference, plan, binary, ADAPTER, proof.limit_kl, progress)
    return f"device: the adapter is wrong (KL {proof.adapter.mean_kl:.4f}), {right}" if right else ""


def _right_on_cpu(
    reference: Reference, plan: Plan, binary: Binary, variant: str, limit_kl: float, progress: Progress
) -> str:
    """Half a sentence when the same files are right on the CPU, empty when they are wrong there too."""
    if choose_device(binary, plan.device)[1].name == "CPU":
        return ""
    progress("trying the same files on the CPU", None, None)
    rows = spread(reference.count, SAMPLE)
    scale = 0.0 if variant == BASE else 1.0
    with tempfile.TemporaryDirectory(prefix="bc250studio-bisect-") as folder:
        kl = _on_second_server(Path(folder), replace(plan, device="cpu"), binary, reference, variant, rows, scale)
    if kl is None or kl > limit_kl:
        return ""
    return f"on the CPU it is right (KL {kl:.4f}): the device or its driver computes wrongly"


def _merged(reference: Reference, plan: Plan) -> str:
    """The weights were found right (``merge_check`` comes first), so the file or the device is not."""
    wanted = reference.facts.get("merged_sha256")
    if wanted:
        from bc250studio.export.exported import sha256_of

        if sha256_of(plan.model) != wanted:
            return f"merged file: {plan.model} is not the file the reference was made with"
    return f"backend: {plan.model.name} holds the right weights, but the server computes something else with them"


def _file(plan: Plan, trained: Path) -> str:
    """Compare the adapter file with the trained adapter, tensor by tensor."""
    if plan.adapter is None:
        return ""
    from bc250studio.export.adapter import find_targets, served_matrices
    from bc250studio.export.peft_adapter import read_adapter

    try:
        peft = read_adapter(trained)
        with GgufFile(plan.model) as base, GgufFile(plan.adapter) as file:
            alpha = float(file.get("adapter.lora.alpha", 0.0))
            wrong = []
            for target in find_targets(peft, base):
                for side, wanted in zip(("lora_a", "lora_b"), served_matrices(peft, target, alpha), strict=True):
                    name = f"{target.tensor.name}.{side}"
                    if name not in file.tensors:
                        wrong.append(f"{name} is missing")
                    elif not _close(file.array(name), wanted):
                        wrong.append(f"{name} differs")
    except StudioError as error:
        return f"adapter file: {clean(error, 200)}"
    if not wrong:
        return ""
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"adapter file: {wrong[0]}{more}; it was not made from {trained}"


def _close(found: np.ndarray, wanted: np.ndarray) -> bool:
    scale = float(np.abs(wanted).max()) or 1.0
    return found.shape == wanted.shape and float(np.abs(found - wanted).max()) <= 0.02 * scale
