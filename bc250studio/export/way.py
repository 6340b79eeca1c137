"""One call for every fine-tune: look at what was trained, take the adapter's way or the merge's, write the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bc250studio.errors import BadInput, clean
from bc250studio.export.adapter import vocabulary_of, write_pairs
from bc250studio.export.exported import Exported
from bc250studio.export.merged import write_merged
from bc250studio.export.peft_adapter import is_adapter, read_adapter
from bc250studio.export.rules import Route, route_adapter
from bc250studio.jobs.progress import Progress, silent
from bc250studio.models.describe import describe
from bc250studio.models.find import ModelSource
from bc250studio.models.gguf_file import GgufFile
from bc250studio.profiles.export import Export


def export(
    trained: Path, source: ModelSource, base: Path, folder: Path, wanted: Export, progress: Progress = silent
) -> Exported:
    """Write ``adapter.gguf`` or ``merged-TYPE.gguf`` into ``folder``.

    ``wanted.kind`` ``auto`` takes the adapter where it is exact and says why where it is not.

    Raises:
        BadInput: an adapter was asked for that cannot be one; or it does not fit the base.
        JobFailed: too little room.
    """
    found = way_of(trained, source, base)
    if wanted.kind == "adapter" and found.kind == "merged":
        raise BadInput(
            f"{clean(trained)} cannot leave as an adapter: {'; '.join(found.reasons)}. "
            "Set export.kind to auto or merged."
        )
    if found.kind == "adapter" and wanted.kind != "merged":
        progress("writing the adapter", None, None)
        with GgufFile(base) as file:
            return write_pairs(read_adapter(trained), file, source.name, folder / "adapter.gguf", wanted.adapter_type)
    imatrix = Path(wanted.imatrix).expanduser() if wanted.imatrix else None
    exported = write_merged(
        trained, source, base, quantisation=wanted.quantisation, progress=progress, imatrix=imatrix, folder=folder
    )
    return replace(exported, notes=(found.sentence, *exported.notes)) if found.reasons else exported


def way_of(trained: Path, source: ModelSource, base: Path) -> Route:
    """Adapter or merged file, by what is in the trained folder."""
    if not is_adapter(trained):
        return Route("merged", ("all weights were trained",))
    with GgufFile(base) as file:
        return route_adapter(read_adapter(trained), describe(source), vocabulary_of(file))
