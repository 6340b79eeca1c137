"""``export RUN|PROFILE|ADAPTER_DIR``: adapter or merged GGUF, and a folder to hand over."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bc250studio.cli.common import Bar, emit
from bc250studio.errors import BadInput

if TYPE_CHECKING:
    from bc250studio.export.exported import Exported
    from bc250studio.jobs import JobFolder
    from bc250studio.jobs.progress import Progress
    from bc250studio.profiles import Resolved


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``export``."""
    parser.add_argument(
        "target", nargs="?", default="last", help="a run, a profile (its newest run), or a PEFT adapter folder"
    )
    parser.add_argument("--base", help="the base model of an adapter folder")
    parser.add_argument("--gguf", help="the base's GGUF file, instead of the one found or converted")
    parser.add_argument(
        "--kind", choices=("auto", "adapter", "merged"), help="auto takes the adapter where it is exact"
    )
    parser.add_argument("--quantisation", "--quantization", help="type of a merged file, such as q8_0 or q4_k_m")
    parser.add_argument("--adapter-type", choices=("f32", "f16", "bf16", "q8_0"), help="number type of an adapter file")
    parser.add_argument("--imatrix", help="importance matrix for low-bit types")
    parser.add_argument("--out", type=Path, help="folder for the file (default: the run's own, or ./NAME-gguf)")
    parser.add_argument("--hand-over", type=Path, metavar="FOLDER", help="also make a folder to give away")
    parser.add_argument("--json", action="store_true", help="the record as JSON")


def run(options: argparse.Namespace) -> int:
    """Export and say what was written."""
    from bc250studio.export.peft_adapter import is_adapter

    bar = Bar()
    folder = Path(options.target).expanduser()
    try:
        if is_adapter(folder) or (folder.is_dir() and not (folder / "state.json").is_file()):
            record = _foreign(folder.resolve(), options, bar)
        else:
            record = _of_run(options, bar)
    finally:
        bar.close()
    lines = [f"{record['path']}  {record['size_bytes'] / 2**20:,.1f} MiB", f"sha256 {record['sha256']}"]
    lines.append("types " + ", ".join(f"{count} x {kind}" for kind, count in record["types"].items()))
    lines += record["notes"]
    if record.get("hand_over"):
        lines.append(f"to hand over: {record['hand_over']}")
    emit(record, options.json, "\n".join(lines))
    return 0


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    pairs = {
        "export.kind": options.kind,
        "export.quantisation": options.quantisation,
        "export.adapter_type": options.adapter_type,
        "export.imatrix": options.imatrix,
        "model.gguf": options.gguf,
    }
    if options.quantisation and options.kind is None:
        pairs["export.kind"] = "merged"
    return {key: value for key, value in pairs.items() if value is not None}


def _foreign(folder: Path, options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """An adapter trained anywhere. Nothing of it is changed, and the base path in its config is only a fallback."""
    from bc250studio import profiles
    from bc250studio.export import handover
    from bc250studio.export.peft_adapter import read_config
    from bc250studio.export.way import export
    from bc250studio.models.find import find
    from bc250studio.models.served import served_base

    config = read_config(folder)
    base = options.base or config.get("base_model_name_or_path")
    if not base:
        raise BadInput(f"{folder} does not say which model it belongs to; give it with --base.")
    try:
        source = find(str(base))
    except BadInput as error:
        if options.base:
            raise
        raise BadInput(f"{error} The adapter names it as its base; give yours with --base.") from error
    resolved = profiles.from_text("", "command line", folder.name, {"model.base": str(base), **_overrides(options)})
    gguf = served_base(resolved, source, progress)
    out = options.out or Path.cwd() / f"{folder.name}-gguf"
    exported = export(folder, source, gguf, out, resolved.profile.export, progress)
    facts = handover.Facts(folder.name, adapter=_adapter_facts(config))
    return _result(exported, gguf, folder, source, options, facts)


def _of_run(options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    from bc250studio import profiles
    from bc250studio.export import stage
    from bc250studio.export.way import export
    from bc250studio.jobs import Lock
    from bc250studio.models.find import find
    from bc250studio.models.served import served_base

    if options.base:
        raise BadInput("--base goes with an adapter folder; a run knows its base.")
    job = _job(options.target)
    frozen = job.profile()
    resolved = profiles.from_text(
        profiles.dump(frozen), str(job.path / "profile.toml"), frozen.name, _overrides(options)
    )
    trained = stage.trained_folder(job)
    profile = resolved.profile
    source = find(profile.model.base, profile.model.revision)
    if options.out:
        gguf = served_base(resolved, source, progress)
        exported = export(trained, source, gguf, options.out.expanduser(), profile.export, progress)
    else:
        with Lock(job.path):
            record = stage.run(job, resolved, progress)
            job.write_stage("export", inputs=stage.inputs(job, resolved), **record)
        exported, gguf = _reread(record), Path(record["outputs"]["base_gguf"])
    return _result(exported, gguf, trained, source, options, handover_facts(job, resolved))


def handover_facts(job: JobFolder, resolved: Resolved) -> Any:
    """What the card of a run says."""
    from bc250studio.export import handover

    profile = resolved.profile
    adapter = {"rank": profile.adapter.rank, "alpha": f"{profile.adapter.alpha:g}"}
    adapter |= {name: "yes" for name in ("rslora", "dora") if getattr(profile.adapter, name)}
    return handover.Facts(
        profile.title or resolved.name,
        train=job.stage("train"),
        proof=job.stage("prove").get("proof") or {},
        adapter=adapter if profile.adapter.kind == "lora" else {"kind": "all weights"},
        data=Path(profile.data.path).name if profile.data.path else None,
    )


def _job(target: str) -> JobFolder:
    """A run, or the newest trained run of a profile."""
    from bc250studio import jobs

    try:
        return jobs.find(target)
    except BadInput:
        for job in jobs.all_jobs():
            if job.state().get("profile") == Path(target).stem and job.stage("train").get("outputs"):
                return job
        raise


def _adapter_facts(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "rank": config["r"],
        "alpha": config["lora_alpha"],
        **({"rslora": "yes"} if config.get("use_rslora") else {}),
    }


def _reread(record: dict[str, Any]) -> Exported:
    from bc250studio.export.exported import Exported

    outputs = record["outputs"]
    path = Path(outputs.get("adapter_gguf") or outputs["merged_gguf"])
    return Exported(path, outputs["kind"], record["types"], record["bytes"], record["sha256"], tuple(record["notes"]))


def _result(
    exported: Exported, gguf: Path, trained: Path, source: Any, options: argparse.Namespace, facts: Any
) -> dict[str, Any]:
    record = {**exported.as_dict(), "base_gguf": str(gguf)}
    if options.hand_over:
        from bc250studio.export import handover

        record["hand_over_files"] = handover.write(options.hand_over, exported, trained, source, gguf, facts)
        record["hand_over"] = str(options.hand_over.expanduser().absolute())
    return record
