"""What the kernels screen says: the library with its proofs, a step's products, the plan, the live tuning table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from textual.content import Content

from bc250studio.errors import clean
from bc250studio.ui.numbers import ago, bar, duration, finite, number
from bc250studio.ui.stage_words import table
from bc250studio.ui.tuning import Tuning
from bc250studio.ui.words import GLYPHS, verdict_text

MARKS = {"hung": "✗", "failed": "✗", "done": "✓", "running": "▶", "waiting": "·"}
STYLES = {"hung": "$error", "failed": "$error", "done": "$success", "running": "$primary"}


def status_text(found: Any, proofs: Iterable[Mapping[str, Any]] = (), now: float = 0.0) -> Content:
    """In use, machine, libraries with their proof, and what live runs have really mapped."""
    if not isinstance(found, Mapping):
        return Content(clean(found, 4000))
    runner = table(found, "runner")
    platform = next(
        (f"{name} {runner[key]}" for name, key in (("HIP", "hip"), ("CUDA", "cuda")) if runner.get(key)), "CPU"
    )
    library = f" ({clean(found['library'], 40)})" if found.get("library") else ""
    parts: list[Any] = [
        ("in use    ", "bold"), f"{clean(found.get('use'), 20)}{library}\n",
        ("chip      ", "bold"), f"{clean(found.get('chip'), 40)}\n",
        ("torch     ", "bold"), f"{clean(runner.get('torch') or 'none', 40)} ({clean(platform, 30)})\n",
        ("python    ", "bold"), f"{clean(runner.get('python') or 'none', 100)}\n",
        ("rocBLAS   ", "bold"), f"{clean(runner.get('rocblas') or 'none here', 100)}\n",
        ("\nLibraries\n", "bold"),
    ]  # fmt: skip
    for entry in _records(found.get("libraries")):
        proven = entry.get("proven") is True
        parts.append(
            (f"{'✓' if proven else '✗'} {clean(entry.get('name') or '', 40):<22}", "$success" if proven else "")
        )
        parts.append(f"{'' if proven else 'not proven: '}{clean(entry.get('why') or 'no reason given', 200)}\n")
        about = [clean(entry[key], 60) for key in ("origin", "architecture") if entry.get(key)]
        classes = entry.get("classes")
        about += [", ".join(clean(name, 20) for name in classes)] if isinstance(classes, list) else []
        parts.append((f"{'':<24}{' · '.join(about)}\n" if about else "", "dim"))
    if not _records(found.get("libraries")):
        parts.append(("none yet: t tunes on this board, bc250studio kernels adopt takes one over\n", "dim"))
    parts.append(("\nProofs\n", "bold"))
    shown = [line for proof in proofs for line in _proof(proof, now)]
    parts += shown or [("none on file; bc250studio kernels prove\n", "dim")]
    parts.append(("\nMapped by live runs\n", "bold"))
    for run in _records(found.get("running")):
        kind = "a tuned library" if run.get("tuned") else "no library of ours"
        parts += [(f"▶ {clean(run.get('run') or '', 44)}  ", "$primary"), f"{kind}\n"]
        parts += _mapped(run)
    if not _records(found.get("running")):
        parts.append(("no live run\n", "dim"))
    return Content.assemble(*parts)


def _mapped(run: Mapping[str, Any]) -> list[Any]:
    """librocblas, then the kernel files: those names that a process really holds."""
    parts: list[Any] = []
    if run.get("variable"):
        parts.append((f"    ROCBLAS_TENSILE_LIBPATH {clean(run['variable'], 200)}\n", "dim"))
    for path in _list(run.get("rocblas")):
        parts.append(f"    {clean(path, 200)}\n")
    files = [PurePath(clean(path, 300)).name for path in _list(run.get("kernel_files"))]
    if files:
        more = f" and {len(files) - 6} more" if len(files) > 6 else ""
        parts.append(f"    {', '.join(files[:6])}{more}\n")
    elif not run.get("rocblas"):
        parts.append(("    neither librocblas nor kernel files\n", "dim"))
    return parts


def _proof(proof: Mapping[str, Any], now: float) -> list[Any]:
    passed = proof.get("verdict") == "passed"
    products = table(proof, "products")
    head = f"{'✓' if passed else '✗'} {clean(proof.get('library') or '', 40):<22}"
    words = (
        f"{clean(proof.get('verdict') or '', 20)} on {clean(proof.get('chip_name') or proof.get('chip') or '?', 30)}, "
        f"torch {clean(proof.get('torch') or '?', 20)}, {number(products.get('cases'))} products twice, "
        f"{ago(now - (finite(proof.get('t')) or now))}\n"
    )
    parts: list[Any] = [(head, "$success" if passed else "bold $error"), words]
    for dtype, run in table(proof, "loss_runs").items():
        if isinstance(run, Mapping):
            parts.append(
                (f"{'':<24}losses stock against tuned in {clean(dtype, 8)}: {number(run.get('difference'))}\n", "dim")
            )
    for fault in _list(proof.get("faults"))[:5]:
        parts.append((f"{'':<24}{clean(fault, 200)}\n", "$error"))
    return parts


def shapes_text(found: Any, ascii_only: bool = False) -> Content:
    """Products of a step, dearest first: share of the work, sizes, how often, what for."""
    shapes = _records(found.get("shapes")) if isinstance(found, Mapping) else []
    if not shapes:
        return Content("There is no product in this step.")
    chip = table(found, "chip")
    board = f"{number(chip.get('compute_units'))} CU at {number(chip.get('clock_mhz'), 4)} MHz"
    passes = found.get("passes")
    over = f" over {passes} passes" if isinstance(passes, int) and passes > 1 else ""
    total = (finite(found.get("flops")) or 0.0) / 1e12
    best = finite(found.get("roofline_s"))
    parts: list[Any] = [
        (clean(found.get("model") or "", 60), "bold"),
        f"  {number(total)} TFLOP in {len(shapes)} kinds of product{over}; at best {number(best)} s on {board}\n",
        (f"{'FLOP':>6} {'':<6}{'type':<8}{'M x N x K':<17}{'batch':>5}{'count':>7} what\n", "bold"),
    ]
    dearest = max((finite(s.get("share")) or 0.0) for s in shapes) or 1.0
    for s in shapes:
        share = finite(s.get("share")) or 0.0
        size = "x".join(str(s.get(side, "?")) for side in ("m", "n", "k"))
        parts += [
            f"{100 * share:5.1f}% ",
            (f"{bar(share / dearest, 5, ascii_only)} ", "$primary"),
            f"{clean(s.get('dtype'), 4):<5}{clean(s.get('layout'), 2):<3}{size:<17}",
            f"{clean(s.get('batch'), 6):>5}{clean(s.get('count'), 7):>7} {clean(s.get('role') or '', 27)}\n",
        ]
    parts += [(f"{clean(note, 200)}\n", "dim") for note in _list(found.get("notes"))]
    return Content.assemble(*parts)


def plan_text(found: Any) -> Content:
    """Parts of the tuning to come, how long each takes, and what is left to stock kernels."""
    parts_of = _records(found.get("parts")) if isinstance(found, Mapping) else []
    if not parts_of:
        return Content("There is nothing to tune in this step.")
    parts: list[Any] = [
        (clean(found.get("model") or "", 60), "bold"),
        f"  about {duration(found.get('seconds'))} on {clean(found.get('chip') or '', 60)}\n",
        (f"{'part':<12}{'sizes':>6}{'designs':>9}  {'about':<12}dearest size\n", "bold"),
    ]
    for p in parts_of:
        sizes, designs = _list(p.get("sizes")), _list(p.get("designs"))
        size = "x".join(str(side) for side in _list(sizes[0])) if sizes else ""
        parts.append(
            f"{clean(p.get('name'), 12):<12}{len(sizes):>6}{len(designs):>9}  {duration(p.get('seconds')):<12}"
            f"{clean(size, 28)}\n"
        )
    parts += [(f"left out: {clean(line, 160)}\n", "dim") for line in _list(found.get("left_out"))]
    parts.append(("\nt starts it as a job that outlives this terminal; a second pass follows for slow sizes.\n", "dim"))
    return Content.assemble(*parts)


def tuning_text(now: Tuning, ascii_only: bool = False) -> Content:
    """Where the job stands, its parts, the best of every size so far, its last events."""
    state = now.standing.state
    parts: list[Any] = [(clean(now.standing.job.name, 40), "bold"), f"  {verdict_text(now.standing)}"]
    if now.standing.live:
        done, total = finite(state.get("stage_done")), finite(state.get("stage_total"))
        parts.append(f"  {clean(state.get('stage_text') or '', 60)}")
        parts.append(
            f"\n{bar(done / total, 40, ascii_only)} {done:.0f}/{total:.0f}" if done is not None and total else ""
        )
    parts.append("\n")
    if state.get("error"):
        parts.append((f"{clean(state['error'], 400)}\n", "$error"))
    if now.last and now.standing.live:
        parts.append(_last(now.last))
    if now.parts:
        parts.append((f"\n{'part':<12}{'state':<11}{'sizes':>5}{'best':>7}{'rejected':>10}{'took':>13}\n", "bold"))
    for part in now.parts:
        share = f"{100 * part.share:.0f} %" if part.share is not None else "-"
        took = duration(part.seconds) if part.seconds is not None else "-"
        mark = f"{MARKS.get(part.verdict, GLYPHS.get(part.verdict, '·'))} {part.verdict}"
        parts += [f"{part.name:<12}", (f"{mark:<11}", STYLES.get(part.verdict, ""))]
        parts.append(f"{part.sizes:>5}{share:>7}{part.rejected:>10}{took:>13}\n")
        if part.verdict in ("hung", "failed"):
            parts.append((f"{'':<12}{part.why}\n", "$error"))
    if now.rows:
        head = f"\n{'part':<12}{'M x N x B x K':<23}{'best design':<21}{'GFLOPS':>7}  of roofline\n"
        parts.append((head, "bold"))
    for row in now.rows:
        parts.append(f"{row.part:<12}{row.size:<23}{row.design:<21}{row.gflops:>7,.0f}  {100 * row.share:3.0f} % ")
        parts.append((f"{bar(row.share, 6, ascii_only)}\n", "$primary"))
    if now.events:
        parts.append(("\nEvents\n", "bold"))
        parts += [f"{text}\n" for text in now.events]
    return Content.assemble(*parts)


def _last(last: Mapping[str, Any]) -> str:
    size = last.get("size")
    sides = "x".join(str(side) for side in size) if isinstance(size, list) else "?"
    fault = last.get("fault")
    speed = f"rejected: {clean(fault, 60)}" if fault else f"{number(last.get('gflops'))} GFLOPS"
    share = finite(last.get("share"))
    best = f", best {number(last.get('best'))}" + (f", {100 * share:.0f} % of roofline" if share is not None else "")
    return f"now  {clean(last.get('part'), 12)} {sides} {clean(last.get('design'), 30)}: {speed}{best}\n"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _records(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
