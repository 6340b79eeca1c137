"""Merge a fine-tune into the base's GGUF and quantise, streaming: no tensor is ever whole in memory.

Read rows of the base, dequantise, change them, quantise, write; several threads, each with one block of rows. All
metadata, the tokenizer and the chat template of the base stay as they are, byte for byte. A tensor that is neither
changed nor given another type is copied as it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bc250studio import paths
from bc250studio.errors import BadInput, JobFailed, clean
from bc250studio.export import vocabulary
from bc250studio.export.changes import Plan, plan_adapter, plan_full
from bc250studio.export.exported import Exported, measure
from bc250studio.export.gguf_write import Fields, GgufWriter, Slot, file_bytes
from bc250studio.export.importance import Importance
from bc250studio.export.numbers import encode
from bc250studio.export.peft_adapter import is_adapter, read_adapter
from bc250studio.export.recipe import Recipe, choose_types, in_order, label_of, recipe_named
from bc250studio.export.rules import route_adapter
from bc250studio.jobs.progress import Progress, silent
from bc250studio.models.describe import describe
from bc250studio.models.find import ModelSource
from bc250studio.models.gguf_file import STRING, U32, GgufFile, Tensor, row_bytes, type_name
from bc250studio.models.safetensors_file import SafetensorsFile

BLOCK_ELEMENTS = 1 << 21
"""Numbers a thread works on at a time: 8 MiB as float32, a few copies of it at once."""
COPIES = 5
SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class Work:
    """One block of rows of one tensor."""

    tensor: Tensor
    source: Tensor | None
    type: int
    first: int
    count: int


def write_merged(
    trained: Path,
    source: ModelSource | None,
    base_gguf: Path,
    out: Path | None = None,
    quantisation: str = "auto",
    progress: Progress = silent,
    *,
    imatrix: Path | None = None,
    threads: int | None = None,
    folder: Path | None = None,
) -> Exported:
    """Merge the adapter (or fully trained model) in ``trained`` into ``base_gguf``.

    ``quantisation``: a recipe's name such as ``q4_k_m``, or ``auto`` to keep every tensor's type. ``out`` is the file;
    without it the file is made in ``folder`` under a name that says its type.

    Raises:
        BadInput: does not fit the base, no such quantisation, an importance matrix of another model.
        JobFailed: too little room on disk or in memory; nothing is left behind.
    """
    with GgufFile(base_gguf) as base:
        plan = plan_for(trained, source, base)
        recipe = None if quantisation in ("", "auto") else recipe_named(quantisation)
        if out is None:
            out = (folder or trained) / f"merged-{(recipe.label if recipe else label_of(base)).lower()}.gguf"
        return write_plan(plan, base, out, recipe, progress, imatrix=imatrix, threads=threads, trained=trained)


def quantise(
    base_gguf: Path, out: Path, quantisation: str, progress: Progress = silent, imatrix: Path | None = None
) -> Exported:
    """Write ``base_gguf`` in another quantisation, without any fine-tune. See :func:`write_merged`."""
    with GgufFile(base_gguf) as base:
        return write_plan(Plan({}, {}, {}), base, out, recipe_named(quantisation), progress, imatrix=imatrix)


def plan_for(trained: Path, source: ModelSource | None, base: GgufFile) -> Plan:
    """What to change: an adapter's changes, or every weight of a fully trained model."""
    if is_adapter(trained):
        adapter = read_adapter(trained)
        route_adapter(adapter, describe(source) if source else None)
        return plan_adapter(adapter, base)
    return plan_full(SafetensorsFile.folder(trained), base, str(trained))


def write_plan(
    plan: Plan,
    base: GgufFile,
    out: Path,
    recipe: Recipe | None,
    progress: Progress = silent,
    *,
    imatrix: Path | None = None,
    threads: int | None = None,
    trained: Path | None = None,
) -> Exported:
    """Write ``base`` with ``plan`` applied. The file appears only when it is whole."""
    if out.resolve() == base.path.resolve():
        raise BadInput(f"{clean(out)} is the base itself; choose another name for the merged file.")
    tensors = _tensors(plan, base)
    importance = Importance.read(imatrix, tensors) if imatrix else None
    types, notes = _types(base, tensors, recipe, plan, importance)
    fields = _fields(plan, base, recipe, importance, trained)
    slots = [Slot(name, tensors[name].shape, types[name]) for name in in_order(tensors)]
    threads = check_room(out, file_bytes(fields, slots), threads)
    works = list(_works(plan, base, tensors, types))
    total = sum(slot.size_bytes for slot in slots)
    with GgufWriter(out, fields, slots) as writer:
        _run(works, threads, lambda work: _block(work, plan, base, writer, importance), total, progress)
    return measure(out, "merged", tuple(notes))


def check_room(out: Path, needed_bytes: int, threads: int | None = None) -> int:
    """Enough disk for ``needed_bytes`` beside ``out``, and memory for the threads; returns how many threads.

    Raises:
        JobFailed: says how many bytes are needed and how many there are.
    """
    import psutil

    free = shutil.disk_usage(paths.private_dir(out.parent)).free
    if free < needed_bytes + SPARE_BYTES:
        raise JobFailed(
            f"The merged file needs {needed_bytes / 2**20:,.0f} MiB, but only {free / 2**20:,.0f} MiB are free in "
            f"{clean(out.parent)}; free some room or choose a smaller quantisation. The trained adapter is untouched."
        )
    wanted = threads or min(os.cpu_count() or 1, 16)
    each = BLOCK_ELEMENTS * 4 * COPIES
    available = psutil.virtual_memory().available
    possible = int((available - SPARE_BYTES) // each)
    if possible < 1:
        raise JobFailed(
            f"Merging needs {(each + SPARE_BYTES) / 2**20:,.0f} MiB of memory, but only {available / 2**20:,.0f} MiB "
            "are free; stop the server or another program and export again."
        )
    return max(1, min(wanted, possible))


def _tensors(plan: Plan, base: GgufFile) -> dict[str, Tensor]:
    """Every tensor of the file to be, with the shape it will have."""
    tensors = {**base.tensors, **plan.added}
    if plan.vocabulary:
        for name in vocabulary.TENSORS:
            if name in tensors:
                tensor = tensors[name]
                shape = (plan.vocabulary, *tensor.shape[1:])
                size = row_bytes(tensor.type, tensor.columns) * plan.vocabulary
                tensors[name] = Tensor(name, shape, tensor.type, tensor.offset, size, tensor.part)
    return tensors


def _types(
    base: GgufFile, tensors: dict[str, Tensor], recipe: Recipe | None, plan: Plan, importance: Importance | None
) -> tuple[dict[str, int], list[str]]:
    import libgguf

    if recipe is None:
        types = {name: tensor.type for name, tensor in tensors.items()}
        for name in plan.changes if importance is None else ():
            if types[name] > 1 and libgguf.quantize_requires_imatrix(types[name]):
                raise BadInput(
                    f"{clean(base.path.name)} stores {name} as {type_name(types[name])}, which cannot be written "
                    "without an importance matrix; set export.quantisation (such as q4_k_m) or export.imatrix."
                )
        return types, []
    chosen, fallen = choose_types(base, tensors.values(), recipe, importance is not None)
    if recipe.label == "Q2_K_S" and importance is None:
        raise BadInput("q2_k_s needs an importance matrix: set export.imatrix, or choose q2_k.")
    notes = []
    if fallen:
        columns = sorted({tensors[name].columns for name in fallen})
        kinds = sorted({chosen[name].name.lower() for name in fallen})
        notes.append(
            f"{len(fallen)} of {len(tensors)} tensors are {' or '.join(kinds)}, not what {recipe.label} names: "
            f"rows of {', '.join(map(str, columns))} numbers do not divide into its blocks (llama.cpp does the same)."
        )
    requantised = sum(
        1
        for name, tensor in tensors.items()
        if _lossy(tensor.type) and (chosen[name] != tensor.type or name in plan.changes)
    )
    if requantised:
        notes.append(
            f"{requantised} tensors were quantised a second time, from {label_of(base)}; an f16 or f32 base loses less."
        )
    return {name: int(kind) for name, kind in chosen.items()}, notes


def _lossy(kind: int) -> bool:
    return kind not in (0, 1, 30)


def _fields(
    plan: Plan, base: GgufFile, recipe: Recipe | None, importance: Importance | None, trained: Path | None
) -> Fields:
    fields = Fields(base.fields)
    fields.drop("split.no", "split.count", "split.tensors.count", "general.alignment")
    fields.put("general.quantization_version", U32, 2)
    if recipe is not None:
        fields.put("general.file_type", U32, recipe.file_type)
    if importance is not None:
        fields.put("quantize.imatrix.file", STRING, importance.path.name)
        fields.put("quantize.imatrix.entries_count", U32, len(importance.values))
    if plan.vocabulary:
        vocabulary.extend(fields, base, trained, plan.vocabulary)
    return fields


def _works(plan: Plan, base: GgufFile, tensors: dict[str, Tensor], types: dict[str, int]) -> Iterator[Work]:
    """Blocks of rows, largest tensors' first so that the threads end together."""
    for tensor in sorted(tensors.values(), key=lambda t: -t.elements):
        source = base.tensors.get(plan.copied_from.get(tensor.name, tensor.name))
        block = max(1, BLOCK_ELEMENTS // max(tensor.columns, 1))
        for first in range(0, tensor.rows, block):
            yield Work(tensor, source, types[tensor.name], first, min(block, tensor.rows - first))


def _block(work: Work, plan: Plan, base: GgufFile, writer: GgufWriter, importance: Importance | None) -> int:
    """Read, change, encode and write one block; returns the bytes written."""
    tensor, source = work.tensor, work.source
    change = plan.changes.get(tensor.name)
    size = row_bytes(work.type, tensor.columns)
    if change is None and source is not None and source.type == work.type and source.shape == tensor.shape:
        packed = base.raw(source, work.first * size, work.count * size)
    else:
        rows = _base_rows(work, change is not None and change.replaces(work.first, work.count), base)
        if change is not None:
            rows = change.apply(rows, work.first)
        packed = _encode(rows, work, importance)
    writer.write(tensor.name, packed, work.first * size)
    return work.count * size


def _base_rows(work: Work, replaced: bool, base: GgufFile) -> np.ndarray:
    """The base's rows as float32; zeros where nothing of it is left (replaced rows, rows of added tokens)."""
    columns = work.tensor.columns
    there = 0 if work.source is None or replaced else max(0, min(work.count, work.source.rows - work.first))
    if there == work.count and work.source is not None:
        return base.rows(work.source, work.first, there)
    rows = np.zeros((work.count, columns), np.float32)
    if there and work.source is not None:
        rows[:there] = base.rows(work.source, work.first, there)
    return rows


def _encode(rows: np.ndarray, work: Work, importance: Importance | None) -> np.ndarray:
    weights = importance.of(work.tensor) if importance else None
    if weights is None:
        return encode(rows, work.type)
    if weights.shape[0] == 1:
        return encode(rows, work.type, weights[0])
    first, per_expert = work.first, work.tensor.rows // weights.shape[0]
    parts = []
    for expert in range(first // per_expert, (first + len(rows) - 1) // per_expert + 1):
        begin, end = max(first, expert * per_expert) - first, min(first + len(rows), (expert + 1) * per_expert) - first
        parts.append(encode(rows[begin:end], work.type, weights[expert]))
    return np.concatenate(parts)


def _run(works: list[Work], threads: int, do: Callable[[Work], int], total: int, progress: Progress) -> None:
    """All blocks through ``threads`` threads; an error or an interrupt stops the rest and is raised."""
    done = 0
    pool = ThreadPoolExecutor(threads, thread_name_prefix="merge")
    try:
        pending: set[Future[int]] = set()
        queue = iter(works)
        exhausted = False
        while pending or not exhausted:
            while not exhausted and len(pending) < 2 * threads:
                work = next(queue, None)
                if work is None:
                    exhausted = True
                else:
                    pending.add(pool.submit(do, work))
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                done += future.result()
            progress("writing the merged file", float(done), float(total))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
