"""``kernels build``: stock fallback logic and tuned logic -> TensileCreateLibrary -> a library of ours.

The options are those that work with Tensile 4.44 (docs/kernels.md): the code object version must be given, lazy
loading needs merged and separate files. The folder rocBLAS gets replaces its own whole, so the fallback is built in.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bc250studio import paths, settings
from bc250studio.errors import BadInput, JobFailed
from bc250studio.jobs.progress import Progress, silent
from bc250studio.kernels import adopt, logic, selection, store, toolchain, watch
from bc250studio.kernels.runtime import runner
from bc250studio.kernels.tensile import GFX, Tensile, configured

QUIET_S = 1800.0
"""A compiler may be silent for long on a slow board."""


def from_logic(
    folder: Path,
    *,
    name: str | None = None,
    prove_it: bool = True,
    stock: Path | None = None,
    leave_out: Sequence[tuple[str, str]] = (),
    equality: Sequence[tuple[str, str]] = (),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Build, store and (unless told not to) prove a library from the tuned logic files below ``folder``.

    ``leave_out``: (type, layout) classes that gain nothing and stay on stock; ``equality``: classes that only serve
    exactly tuned sizes. Returns adopt's record.

    Raises:
        BadInput: no logic, no Tensile for gfx1013, no compiler, no fallback logic.
        JobFailed: the build failed; names its log. ProofFailed: the library computes wrongly.
    """
    place, said = build(folder, name=name, stock=stock, leave_out=leave_out, equality=equality, progress=progress)
    facts = adopt.probe(place / "library", runner())
    return adopt.finish(store.library(place.name), said, prove_it, progress, facts)


def build(
    folder: Path,
    *,
    name: str | None = None,
    stock: Path | None = None,
    leave_out: Sequence[tuple[str, str]] = (),
    equality: Sequence[tuple[str, str]] = (),
    progress: Progress = silent,
) -> tuple[Path, list[str]]:
    """See :func:`from_logic`; returns the library's place and what was done, as sentences."""
    tensile, tools = configured(), toolchain.find()
    fallback = toolchain.stock_logic(stock, tensile)
    place = store.new_place(name or folder.resolve().name)
    said: list[str] = []
    try:
        tuned = gather(folder, place / "logic", tensile.schedule, leave_out, equality, said)
        with tempfile.TemporaryDirectory(prefix="bc250studio-build-") as scratch:
            inputs = Path(scratch) / "logic"
            lay_out(inputs, fallback, sorted((place / "logic").glob("*.yaml")))
            progress(f"building {len(tuned)} tuned and {len(fallback)} fallback logic files", None, None)
            outcome = watch.run(
                command(tensile, tools.compiler, inputs, Path(scratch) / "out"),
                folder=Path(scratch),
                environment=tools.environment(os.environ),
                log=place / "build.log",
                on_line=lambda line: progress(line[:120], None, None),
                quiet_s=QUIET_S,
            )
            made = Path(scratch) / "out" / "library"
            if not outcome.ok or not any(made.glob("*.dat")):
                raise JobFailed(
                    f"The library was not built: TensileCreateLibrary {outcome.words}. "
                    f"{explain(place / 'build.log')} Log: {_keep_log(place)}"
                )
            shutil.copytree(made, place / "library")
        library = selection.open_library(place / "library", GFX)
        if not any("fallback" in file.name for file in library.folder.iterdir()):
            raise JobFailed(
                "The library was built without fallback tables; give rocBLAS's stock logic with --stock-logic."
            )
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    classes = sorted({f"{item.dtype} {item.layout}" for item in tuned})
    said.append(f"Built {place.name} from {len(tuned)} tuned and {len(fallback)} fallback logic files.")
    store.write_about(
        place, origin=f"built from {folder.resolve()}", architecture=GFX, classes=classes, tensile=tensile.version,
        left_out=[" ".join(c) for c in leave_out], equality=[" ".join(c) for c in equality],
    )  # fmt: skip
    return place, said


def gather(
    folder: Path,
    out: Path,
    schedule: str,
    leave_out: Sequence[tuple[str, str]],
    equality: Sequence[tuple[str, str]],
    said: list[str],
) -> list[logic.Logic]:
    """Copies of the tuned logic files in ``out``: tag off, distance set, named so that Tensile picks them for the chip.

    Raises:
        BadInput: none of the files below ``folder`` is tuned for gfx1013.
    """
    paths.private_dir(out)
    kept = []
    for item in logic.read_folder(folder):
        if item.architecture != GFX or item.dtype is None:
            continue
        label = (item.dtype, item.layout)
        if label in leave_out:
            said.append(f"{item.dtype} {item.layout} is left to rocBLAS's own kernels: no gain was measured.")
            continue
        if item.set_metric():
            said.append(f"The CUEfficiency tag was taken off {item.path.name}.")
        if label in equality:
            item.set_distance("Equality")
        item.items[1] = schedule
        # TensileCreateLibrary takes a file only when its *name* contains the chip's name in the architecture map.
        file = item.path.name if schedule in item.path.name else f"{schedule}_{item.path.name}"
        item.write(out / file)
        kept.append(item)
    if not kept:
        raise BadInput(f"{folder} holds no logic file tuned for {GFX}; kernels tune makes them.")
    return kept


def lay_out(inputs: Path, fallback: Sequence[Path], tuned: Sequence[Path]) -> None:
    """TensileCreateLibrary's logic folder: fallback and tuned files side by side."""
    inputs.mkdir(parents=True)
    for file in [*fallback, *tuned]:
        shutil.copyfile(file, inputs / file.name)


def command(tensile: Tensile, compiler: str, inputs: Path, out: Path) -> list[str]:
    """The call of TensileCreateLibrary."""
    return [
        python(), str(tensile.creator), "--merge-files", "--separate-architectures", "--lazy-library-loading",
        "--no-short-file-names", "--no-enumerate", "--library-format=msgpack", "--code-object-version=default",
        f"--cxx-compiler={compiler}", f"--architecture={GFX}", f"--jobs={max(1, (os.cpu_count() or 2) - 1)}",
        str(inputs), str(out), "HIP",
    ]  # fmt: skip


def python() -> str:
    """The Python Tensile runs under: the runner's, which its owner built rocBLAS and torch with."""
    import sys

    return settings.load().runtime.python or sys.executable


def explain(log: Path) -> str:
    """The likeliest reason in a Tensile log, as a sentence; empty when nothing known is in it."""
    try:
        text = log.read_text("utf-8", "replace")[-200_000:]
    except OSError:
        return ""
    missing = re.search(r"No module named '(\w+)'", text)
    if missing:
        return f"Its Python lacks {missing[1]}: install it there (Tensile needs pyyaml, msgpack, joblib and rich)."
    if "not supported for ISA" in text or ("0 / " in text and "Actual Solutions" in text):
        return "Tensile rejected every kernel: is it patched for gfx1013?"
    if "Unknown CodeObjectVersion" in text:
        return "This Tensile knows other code object versions than 'default'."
    if re.search(r"fatal error: '[^']+' file not found", text):
        return "The compiler lacks HIP headers; set ROCM_PATH to a whole ROCm."
    lines = [line for line in text.splitlines() if re.match(r"\w*(Error|Exception)\b", line)]
    return lines[-1][:300] if lines else ""


def _keep_log(place: Path) -> Path:
    """The log survives the folder of a failed build."""
    kept = paths.private_dir(store.home() / "logs") / f"build-{place.name}.log"
    shutil.copyfile(place / "build.log", kept)
    return kept
