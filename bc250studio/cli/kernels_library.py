"""``kernels prove | use | status | adopt | predict``: is a library right, is it in use, whom does it serve?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bc250studio.cli.common import Bar, emit, narrate, table
from bc250studio.kernels.arguments import add_source, gather, stored


def add(verbs: Any) -> None:
    """Options of these verbs."""
    prove = verbs.add_parser("prove", help="compare every kind of product with float64, and training with the CPU")
    add_source(prove)
    prove.add_argument(
        "--library", metavar="NAME", help="a library of ours, a library folder, or stock (default: the one in use)"
    )
    prove.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 (default auto)")
    prove.add_argument("--types", help="number types with commas (default fp32,fp16,bf16)")
    prove.add_argument("--quick", action="store_true", help="the small selection of the start check")
    prove.add_argument("--json", action="store_true", help="as JSON")
    prove.set_defaults(act=run_prove)

    use = verbs.add_parser("use", help="tuned, stock or auto kernels for later runs")
    use.add_argument("which", choices=("tuned", "stock", "auto"))
    use.add_argument("--library", metavar="NAME", help="which tuned library (default: the newest)")
    use.set_defaults(act=run_use)

    status = verbs.add_parser("status", help="what is built, proven and really loaded")
    status.add_argument("--json", action="store_true", help="as JSON")
    status.set_defaults(act=run_status)

    adopt = verbs.add_parser("adopt", help="take over a tuned library folder or logic files you already have")
    adopt.add_argument("folder", help="folder with TensileLibrary*.dat, or with logic files (.yaml)")
    adopt.add_argument("--name", help="what to call it (default: the folder's name)")
    adopt.add_argument("--no-prove", action="store_true", help="take it over without proof; auto will not use it")
    adopt.add_argument("--json", action="store_true", help="as JSON")
    adopt.set_defaults(act=run_adopt)

    predict = verbs.add_parser("predict", help="which kernel each product will meet, without a GPU")
    add_source(predict)
    predict.add_argument(
        "--library", metavar="NAME", help="a library of ours or a library folder (default: the newest)"
    )
    predict.add_argument("--arch", default="gfx1013", help="chip whose rows are meant (default gfx1013)")
    predict.add_argument("--json", action="store_true", help="as JSON")
    predict.set_defaults(act=run_predict)


def run_prove(options: argparse.Namespace) -> int:
    """Prove, print, and fail loudly."""
    from bc250studio.kernels import prove

    products = gather(options).products if options.profile or options.shapes or options.model else ()
    bar = Bar()
    record = prove.prove(
        device=options.device,
        library=stored(options.library),
        products=products,
        dtypes=options.types.split(",") if options.types else None,
        quick=options.quick,
        progress=bar,
    )
    bar.close()
    emit(record, options.json, _proof_text(record))
    prove.insist(record)
    return 0


def _proof_text(record: dict[str, Any]) -> str:
    groups = record["products"]["groups"]
    rows = [
        [name, g["cases"], g["failed"], f"{g['elements']:.2f}", f"{g['norm']:.2f}", "yes" if g["repeatable"] else "no"]
        for name, g in groups.items()
    ]
    lines = [
        table(["type layout", "products", "wrong", "worst element / bound", "whole / bound", "same bits twice"], rows),
        "",
    ]
    for check in record.get("training", []):
        measured = "-" if check["measured"] is None else f"{check['measured']:.2g}"
        lines.append(
            f"{'ok   ' if check['passed'] else 'WRONG'}  {check['name']}: {measured} (limit {check['limit']:g})"
        )
    for dtype, run in record.get("loss_runs", {}).items():
        lines.append(
            f"{'ok   ' if run['passed'] else 'WRONG'}  losses stock against tuned in {dtype}: {run['difference']:.2g}"
        )
    lines += [f"WRONG  {fault}" for fault in record["faults"][:20]]
    lines.append(
        f"\n{record['library']} kernels on {record['chip_name']} with torch {record['torch']}: "
        f"{record['verdict']}, {record['products']['cases']} products twice in {record['seconds']:.0f} s"
    )
    return "\n".join(lines)


def run_use(options: argparse.Namespace) -> int:
    """Remember the choice."""
    from bc250studio.kernels import store

    store.choose(options.which, options.library)
    use, name = store.choice()
    narrate(f"Later runs use {use} kernels" + (f" ({name})." if use != "stock" and name else "."))
    return 0


def run_status(options: argparse.Namespace) -> int:
    """Print."""
    from bc250studio.kernels import switch

    record = switch.status()
    runner = record["runner"]
    platform = next((f"{k} {runner[k.lower()]}" for k in ("HIP", "CUDA") if runner[k.lower()]), "CPU")
    lines = [
        f"in use     {record['use']}" + (f" ({record['library']})" if record["library"] else ""),
        f"chip       {record['chip']}",
        f"torch      {runner['torch'] or 'none'} ({platform}), {runner['python']}",
        f"rocBLAS    {runner['rocblas'] or 'none'}"
        + (f", build {runner['rocblas_build']}" if runner["rocblas_build"] else ""),
    ]
    for entry in record["libraries"]:
        lines.append(
            f"library    {entry['name']}: {'proven' if entry['proven'] else 'not proven'} ({entry['why']}), "
            f"{entry.get('origin', '')}"
        )
    if not record["libraries"]:
        lines.append("library    none of ours yet")
    for run in record["running"]:
        lines.append(
            f"running    {run['run']}: {run['variable'] or 'no library of ours'}; "
            f"mapped {', '.join(run['rocblas']) or 'no rocBLAS'}"
        )
    emit(record, options.json, "\n".join(lines))
    return 0


def run_adopt(options: argparse.Namespace) -> int:
    """Take over, prove, use."""
    from bc250studio.kernels import adopt

    bar = Bar()
    record = adopt.adopt(Path(options.folder), name=options.name, prove_it=not options.no_prove, progress=bar)
    bar.close()
    emit(record, options.json, "\n".join(record["said"]))
    return 0


def run_predict(options: argparse.Namespace) -> int:
    """Print what each product will meet."""
    from bc250studio.errors import BadInput
    from bc250studio.kernels import predict, selection

    meant = stored(options.library)
    if meant is None:
        raise BadInput("Give --library NAME or FOLDER: there is no tuned library of ours to read.")
    library = selection.open_library(meant.folder, options.arch)
    found = predict.predict(library, gather(options))
    emit(found, options.json, predict.text(found))
    for warning in found["warnings"]:
        narrate(f"Warning: {warning}")
    return 0
