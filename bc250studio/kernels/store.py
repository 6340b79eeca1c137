"""Where kernel libraries, their proofs and the choice lie: ``kernels/`` in the user's data folder.

``libraries/NAME/library/`` holds a library as rocBLAS loads it and ``libraries/NAME/about.json`` its history;
``proofs/KEY.json`` one verdict; ``use.json`` the choice. The installed rocBLAS is never touched.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.errors import BadInput, clean, nearest
from bc250studio.jobs.folder import read_json
from bc250studio.kernels.runtime import folder_digest

SCHEMA = 1
CHOICES = ("auto", "stock", "tuned")


def home() -> Path:
    """The folder of everything here."""
    return paths.data_dir() / "kernels"


@dataclass(frozen=True)
class Stored:
    """One library of ours: its name, its folder for rocBLAS, and what is known about it."""

    name: str
    folder: Path
    about: dict[str, Any]

    @property
    def digest(self) -> str:
        """sha256 over the whole folder, as it is now."""
        return folder_digest(self.folder)


def libraries() -> list[Stored]:
    """Every library of ours, newest first."""
    found = []
    for place in (home() / "libraries").glob("*/about.json"):
        about = read_json(place)
        if (place.parent / "library").is_dir() and about:
            found.append(Stored(place.parent.name, place.parent / "library", about))
    return sorted(found, key=lambda s: (float(s.about.get("created") or 0), s.name), reverse=True)


def library(name: str | None = None) -> Stored:
    """A library by name; the newest without one.

    Raises:
        BadInput: none is there, or none of that name.
    """
    known = libraries()
    if not known:
        raise BadInput(
            "There is no tuned library yet; make one with: bc250studio kernels tune, "
            "or take one over with: bc250studio kernels adopt."
        )
    if name is None:
        return known[0]
    for stored in known:
        if stored.name == name:
            return stored
    raise BadInput(f"No library is called {clean(name)!r}.{nearest(name, [s.name for s in known])}")


def new_place(label: str) -> Path:
    """An empty ``libraries/NAME`` folder for a library called something like ``label``."""
    stem = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")[:40] or "library"
    number = 1
    while True:
        place = home() / "libraries" / (stem if number == 1 else f"{stem}-{number}")
        try:
            paths.private_dir(place.parent)
            place.mkdir(mode=0o700)
            return place
        except FileExistsError:
            number += 1


def write_about(place: Path, **facts: Any) -> None:
    """Say what lies in ``place``; the last step of making a library, before which it does not exist."""
    paths.write_atomic(
        place / "about.json", json.dumps({"schema": SCHEMA, "created": time.time(), **facts}, indent=1, default=str)
    )


def proof_key(torch: str | None, rocblas_build: str, library_digest: str, chip: str) -> str:
    """A proof holds for exactly this torch, this rocBLAS, this library folder and this chip."""
    text = json.dumps([torch, rocblas_build, library_digest, chip])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def write_proof(key: str, record: dict[str, Any]) -> Path:
    """Keep a verdict."""
    folder = paths.private_dir(home() / "proofs")
    paths.write_atomic(folder / f"{key}.json", json.dumps({"schema": SCHEMA, "t": time.time(), **record}, indent=1))
    return folder / f"{key}.json"


def read_proof(key: str) -> dict[str, Any]:
    """The verdict on file; empty without one."""
    return read_json(home() / "proofs" / f"{key}.json")


def choice() -> tuple[str, str | None]:
    """(``auto``, ``stock`` or ``tuned``; the library's name or None for the newest)."""
    record = read_json(home() / "use.json")
    use, name = record.get("use"), record.get("library")
    return (use if use in CHOICES else "auto"), (name if isinstance(name, str) else None)


def choose(use: str, name: str | None = None) -> None:
    """Remember the choice for every later run.

    Raises:
        BadInput: an unknown word, or a library that is not there.
    """
    if use not in CHOICES:
        raise BadInput(f"Kernels can be {', '.join(CHOICES)}, not {clean(use)!r}.{nearest(use, CHOICES)}")
    if use == "tuned" or name is not None:
        name = library(name).name
    folder = paths.private_dir(home())
    paths.write_atomic(folder / "use.json", json.dumps({"schema": SCHEMA, "use": use, "library": name}))
