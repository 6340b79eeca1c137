"""A quick look at a dataset, in a thread: what it is, which columns it has, and the known datasets of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from bc250studio import paths, profiles
from bc250studio.errors import BadInput, StudioError, clean
from bc250studio.ui.local_models import present_folder
from bc250studio.ui.numbers import size
from bc250studio.ui.watch import Snapshot

if TYPE_CHECKING:
    from bc250studio.data.recognise import Recognition

SAMPLE = 50
EXAMPLE_WIDTH = 200


@dataclass(frozen=True)
class Look:
    """``refusal`` is a sentence when the rows cannot be learnt as they are; ``columns`` maps a column to an example."""

    recognition: Recognition
    files: int
    size_bytes: int
    columns: Mapping[str, str] = field(default_factory=dict)
    refusal: str = ""


def quick(profile: profiles.Profile) -> Look:
    """What ``data.path`` is, from its first rows.

    Raises:
        BadInput: nothing there, or nothing in it can be read or recognised.
    """
    from bc250studio.data import files
    from bc250studio.data.check import look
    from bc250studio.data.prepare import preference_words

    dataset = files.locate(profile.data.path)
    found = look(profile)
    refusal = ""
    if found.format == "preference" and not profile.data.use_chosen:
        refusal = f"The file {preference_words(found)}"
    return Look(found, len(dataset.files), dataset.size_bytes, columns(profile.data.path), refusal)


def columns(reference: str) -> dict[str, str]:
    """Column -> an example of what stands in it, from the first rows; empty when rows are no objects.

    Raises:
        BadInput: nothing there, or it cannot be read.
    """
    from bc250studio.data import files

    found: dict[str, str] = {}
    for raw in islice(files.locate(reference).rows(), SAMPLE):
        value: Any = raw.value
        if raw.problem is None and isinstance(value, dict):
            for name, example in value.items():
                if example and not found.get(str(name)):
                    found[str(name)] = clean(" ".join(str(example).split()), EXAMPLE_WIDTH)
                found.setdefault(str(name), "")
    return found


def is_remote(reference: str) -> bool:
    """A dataset of the hub is fetched by the check or the run, not by a look."""
    return reference.startswith("hub:")


def known(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    """(path, size, where from): the one that ships, those of earlier runs and profiles, kept chats, data files here."""
    from bc250studio.data import files

    found: dict[str, str] = {}
    for row in snapshot.jobs[:30]:
        try:
            found.setdefault(row.standing.job.profile().profile.data.path, f"run {row.name}")
        except StudioError:
            continue
    found.setdefault("assets:demo.jsonl", "comes with bc250studio")
    for name in profiles.available():
        try:
            found.setdefault(profiles.load(name).profile.data.path, f"profile {name}")
        except StudioError:
            continue
    for folder, where in ((paths.data_dir() / "collected", "answers kept in chat"), (present_folder(), "this folder")):
        try:
            entries = sorted(folder.iterdir())
        except OSError:
            continue
        for file in entries[:500]:
            if files.kind_of(file) not in (None, "text") and file.is_file():
                found.setdefault(str(file), where)
    return [(path, _size(path), clean(where, 60)) for path, where in found.items()]


def _size(reference: str) -> str:
    from bc250studio.data import files

    if is_remote(reference):
        return "-"
    try:
        return size(files.locate(reference).size_bytes)
    except (BadInput, OSError):
        return "gone"
