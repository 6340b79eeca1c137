"""``kernels adopt``: a tuned library or logic files that exist already: checked, copied, proven, used."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from bc250studio.errors import BadInput, clean
from bc250studio.jobs.progress import Progress, silent
from bc250studio.kernels import edit, selection, store
from bc250studio.kernels.runtime import Runner, runner

_ARCH = re.compile(r"gfx[0-9a-f]{3,4}")


def adopt(
    folder: Path, *, name: str | None = None, prove_it: bool = True, progress: Progress = silent
) -> dict[str, Any]:
    """Take over ``folder``: tables (``TensileLibrary*.dat``) or logic files (built first).

    The folder itself is never changed. Returns what was found and done, ``said`` as sentences.

    Raises:
        BadInput: not a library and not logic, no fallback in it, or of another rocBLAS build.
        ProofFailed: it computes wrongly; it stays on file unused.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder; give the one with TensileLibrary*.dat or with logic files.")
    if not any(folder.rglob("*.dat")):
        from bc250studio.kernels import build

        if not any(folder.rglob("*.yaml")):
            raise BadInput(f"{folder} holds neither kernel tables (TensileLibrary*.dat) nor logic files (.yaml).")
        return build.from_logic(folder, name=name, prove_it=prove_it, progress=progress)
    found = runner()
    facts = probe(folder, found)
    if facts["belongs"] is False:
        raise BadInput(
            f"{folder} does not belong to this rocBLAS ({found.rocblas}): {facts['why']}; "
            "build it again from its logic files."
        )
    if not facts["fallback"]:
        raise BadInput(
            f"{folder} holds no fallback tables, so every product it was not tuned for would abort; "
            "build it again together with the stock logic."
        )
    source = Path(facts["folder"])
    place = store.new_place(name or (folder.name if folder.name != "library" else folder.resolve().parent.name))
    tuned = ", ".join(facts["classes"]) or "nothing"
    said = [f"Found {facts['files']} files for {facts['architecture']}, tuned for {tuned}."]
    try:
        progress("copying the library", None, None)
        shutil.copytree(source, place / "library", symlinks=False)
        stripped = edit.strip_tag(place / "library")
    except (OSError, shutil.Error, BadInput) as error:
        shutil.rmtree(place, ignore_errors=True)
        raise BadInput(f"{folder} could not be copied: {clean(error, 200)}.") from error
    if stripped:
        said.append(
            f"The CUEfficiency tag was taken off {stripped} tables; with it rocBLAS would never have used them."
        )
    said.append(f"Same rocBLAS build: {'yes' if facts['belongs'] else 'cannot tell'} ({facts['why']}).")
    store.write_about(
        place, origin=f"adopted from {folder.resolve()}", architecture=facts["architecture"], classes=facts["classes"]
    )
    return finish(store.library(place.name), said, prove_it, progress, facts)


def finish(
    stored: store.Stored, said: list[str], prove_it: bool, progress: Progress, facts: dict[str, Any]
) -> dict[str, Any]:
    """Prove a stored library and choose it; shared by adopting, building and installing.

    Raises:
        ProofFailed: see :func:`prove.insist`; the library stays on file, unused.
    """
    from bc250studio.kernels import prove

    record: dict[str, Any] = {"name": stored.name, "folder": str(stored.folder), **facts, "said": said, "verdict": None}
    if prove_it:
        proof = prove.prove(library=stored, progress=progress)
        record["verdict"], record["proof"] = proof["verdict"], proof.get("proof")
        prove.insist(proof)
        store.choose("auto", stored.name)
        said.append(
            f"Proven on {proof['chip_name']}: {proof['products']['cases']} products. "
            f"Later runs use {stored.name}; undo with: kernels use stock."
        )
    else:
        said.append(f"Not proven, so auto does not use it; run: bc250studio kernels prove --library {stored.name}")
    return record


def probe(folder: Path, found: Runner) -> dict[str, Any]:
    """What a library folder is, without changing anything.

    ``belongs``: True or False by comparing its fallback tables with those beside the installed rocBLAS, None when
    there is nothing to compare with.

    Raises:
        BadInput: no table of a chip in it.
    """
    roots = sorted(folder.rglob("TensileLibrary*.dat"))
    places = {p.parent for p in roots if "lazy" in p.name} or {p.parent for p in roots}
    if len(places) > 1:
        raise BadInput(
            f"{folder} holds several libraries ({', '.join(sorted(p.name for p in places)[:4])}); give one of them."
        )
    place = next(iter(places), folder)
    names = sorted(p.name for p in place.iterdir() if p.is_file())
    architectures = {m for n in names if "fallback" not in n for m in _ARCH.findall(n)}
    architecture = "gfx1013" if "gfx1013" in architectures else next(iter(sorted(architectures)), "gfx1013")
    library = selection.open_library(place, architecture)
    classes = sorted({f"{p.dtype} {p.layout}" for p in library.sizes()})
    fallback = any("fallback" in n for n in names) or library.root.name == "TensileLibrary.dat"
    belongs, why = compare(place, found.stock)
    return {
        "folder": str(place),
        "files": len(names),
        "architecture": architecture,
        "classes": classes,
        "tagged": edit.tagged(place),
        "fallback": fallback,
        "belongs": belongs,
        "why": why,
    }


def compare(place: Path, stock: Path | None) -> tuple[bool | None, str]:
    """Do the tables in ``place`` have the form of those beside the installed rocBLAS?

    Same release means: fallback tables of the same names describe solutions with the same fields and kernels.
    """
    if stock is None:
        return None, "no rocBLAS was found beside the runner's torch"
    shared = sorted({p.name for p in place.glob("*fallback*.dat")} & {p.name for p in stock.rglob("*fallback*.dat")})
    if not shared:
        return None, f"no fallback table of {place.name} has its like in {stock}"
    for name in shared:
        other = next(stock.rglob(name))
        ours, theirs = _form(place / name), _form(other)
        if ours[0] != theirs[0]:
            return False, f"{name} describes its kernels with other fields ({len(ours[0] ^ theirs[0])} differ)"
        if ours[1] != theirs[1]:
            return False, f"{name} names other fallback kernels than {other}"
    return True, f"{len(shared)} fallback tables agree with {stock}"


def _form(file: Path) -> tuple[frozenset[str], frozenset[str]]:
    solutions = selection.read_dat(file).get("solutions")
    fields: set[str] = set()
    kernels: set[str] = set()
    for solution in solutions if isinstance(solutions, list) else []:
        if isinstance(solution, dict):
            fields |= {str(key) for key in solution}
            mapping = solution.get("sizeMapping")
            fields |= {f"sizeMapping.{key}" for key in mapping} if isinstance(mapping, dict) else set()
            kernels.add(str(solution.get("name")))
    return frozenset(fields), frozenset(kernels)
