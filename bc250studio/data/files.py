"""Where a dataset's files are (a file, a folder, a hub dataset, one that ships), and their rows in order."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from bc250studio import paths
from bc250studio.data.raw import Raw
from bc250studio.data.read_csv import read_table
from bc250studio.data.read_json import read_document, read_lines
from bc250studio.data.read_parquet import read_parquet
from bc250studio.data.read_text import has_paragraphs, read_text
from bc250studio.errors import BadInput, clean, nearest

_KINDS = {".jsonl": "lines", ".ndjson": "lines", ".json": "document", ".csv": "table", ".tsv": "table",
          ".parquet": "parquet", ".txt": "text"}  # fmt: skip
_SNIFF_BYTES = 1 << 16
_SPLIT_NAMES = {
    "train": re.compile(r"(?:^|[^a-z])train(?:ing)?(?:[^a-z]|$)", re.I),
    "evaluation": re.compile(r"(?:^|[^a-z])(?:valid(?:ation)?|dev|eval(?:uation)?|val)(?:[^a-z]|$)", re.I),
    "test": re.compile(r"(?:^|[^a-z])test(?:[^a-z]|$)", re.I),
}


@dataclass
class Dataset:
    """Files in reading order. ``evaluation`` holds those a folder sets apart by name. ``notes`` are sentences."""

    name: str
    files: list[Path]
    evaluation: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rows(self, on_bytes: Callable[[int], None] | None = None) -> Iterator[Raw]:
        """Every row of every file; ``on_bytes`` hears how many bytes of the files were read so far.

        Raises:
            BadInput: a file that cannot be opened.
        """
        done = 0
        for path in self.files:
            label = path.name if len(self.files) > 1 else ""
            for raw in read_file(path, self.notes, (lambda n, d=done: on_bytes(d + n)) if on_bytes else None):  # type: ignore[misc]
                raw.file = label
                yield raw
            done += path.stat().st_size

    @property
    def size_bytes(self) -> int:
        """Bytes of all files as they lie on disk."""
        return sum(path.stat().st_size for path in self.files)

    def digest(self) -> str:
        """SHA-256 over the files' bytes, in order."""
        whole = hashlib.sha256()
        for path in self.files:
            with path.open("rb") as stream:
                whole.update(hashlib.file_digest(stream, "sha256").digest())
        return whole.hexdigest()


def locate(reference: str, progress: Callable[[str], None] | None = None) -> Dataset:
    """The files behind ``data.path``: a file, a folder, ``hub:owner/name[@revision]`` or ``assets:NAME``.

    Raises:
        BadInput: nothing there, nothing readable in it, or the hub could not be asked.
    """
    text = reference.strip()
    if text.startswith("assets:"):
        return Dataset(text, [paths.shipped(f"assets/{text.removeprefix('assets:')}")])
    if text.startswith("hub:"):
        if progress:
            progress(f"Fetching the dataset {clean(text.removeprefix('hub:'), 80)}")
        return _folder(_hub(text.removeprefix("hub:")), text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _folder(path, str(path))
    if not path.exists():
        near = nearest(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
        hub = f" A dataset of the hub is written hub:{text}." if re.fullmatch(r"[\w.-]+/[\w.-]+", text) else ""
        raise BadInput(f"No data at {clean(text, 200)!r}: no such file or folder.{near}{hub}")
    if kind_of(path) is None:
        raise BadInput(
            f"{path} has an ending that is not known: give .jsonl, .json, .csv, .tsv, .parquet or .txt (also .gz)."
        )
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty.")
    return Dataset(str(path), [path])


def kind_of(path: Path) -> str | None:
    """How a file is read, by its ending (``.gz`` aside), or None."""
    name = path.name.lower().removesuffix(".gz")
    return next((kind for ending, kind in _KINDS.items() if name.endswith(ending)), None)


def _folder(folder: Path, name: str) -> Dataset:
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    known = [
        p for p in found if kind_of(p) and not re.fullmatch(r"dataset_infos?\.json|README.*|LICENSE.*", p.name, re.I)
    ]
    data = [p for p in known if kind_of(p) != "text"] or known
    data = [p for p in data if p.stat().st_size > 0]
    if not data:
        raise BadInput(f"{folder} holds no .jsonl, .json, .csv, .tsv, .parquet or .txt file with something in it.")
    notes = []
    train = [p for p in data if _SPLIT_NAMES["train"].search(p.stem)]
    evaluation = [p for p in data if p not in train and _SPLIT_NAMES["evaluation"].search(p.stem)]
    test = [p for p in data if p not in train and p not in evaluation and _SPLIT_NAMES["test"].search(p.stem)]
    if train and (evaluation or test):
        held = evaluation or test
        left = [p.name for p in data if p not in train and p not in held]
        notes.append(
            f"Files named after a split: {len(train)} for training, {len(held)} for evaluation"
            + (f"; left aside: {', '.join(clean(n, 40) for n in left[:5])}." if left else ".")
        )
        return Dataset(name, train, held, notes)
    return Dataset(name, data, [], notes)


def _hub(reference: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = reference.partition("@")
    wanted = [f"*{ending}{gz}" for ending in _KINDS for gz in ("", ".gz")]
    try:
        return Path(snapshot_download(name, repo_type="dataset", revision=revision or None, allow_patterns=wanted))
    except HFValidationError as error:
        raise BadInput(f"hub:{clean(reference, 80)} is not a dataset id; it has the form hub:owner/name.") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        why = {
            "GatedRepoError": "it is gated: accept its terms on huggingface.co and set HF_TOKEN",
            "RepositoryNotFoundError": "there is no such dataset, or it is private (set HF_TOKEN)",
            "LocalEntryNotFoundError": "it is not on this machine and the hub cannot be reached",
            "OfflineModeIsEnabled": "it is not on this machine and HF_HUB_OFFLINE is set",
        }.get(type(error).__name__, type(error).__name__)
        raise BadInput(f"The dataset {clean(name, 80)} could not be fetched from the hub: {why}.") from error


def read_file(path: Path, notes: list[str], on_bytes: Callable[[int], None] | None = None) -> Iterator[Raw]:
    """The rows of one file, whatever its kind; a gzip file that breaks off ends with a row that says so.

    Raises:
        BadInput: it cannot be opened.
    """
    kind = kind_of(path)
    if kind == "parquet":
        yield from read_parquet(path)
        return
    try:
        with path.open("rb") as plain:
            head = _head(plain)
            watched = _Watched(plain, on_bytes)
            stream: IO[bytes] = io.BufferedReader(watched, 1 << 18)  # type: ignore[arg-type]
            if head[:2] == b"\x1f\x8b":
                stream = gzip.GzipFile(fileobj=stream)  # type: ignore[assignment]
                head = _gunzip_head(head)
            last = 0
            try:
                for raw in _rows(kind or "lines", stream, head, path.name, notes):
                    last = raw.number
                    yield raw
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                yield Raw(last + 1, None, f"broken gzip: {clean(error, 80)}")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from error


def _rows(kind: str, stream: IO[bytes], head: bytes, name: str, notes: list[str]) -> Iterator[Raw]:
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        stream = _Recoded(stream)  # type: ignore[assignment]
    if kind == "lines" and _is_list(head):
        kind = "document"
    elif kind == "document" and _is_lines(head):
        kind = "lines"
    if kind == "lines":
        return read_lines(stream)
    if kind == "document":
        return read_document(stream)
    if kind == "table":
        return read_table(stream, name, notes)
    paragraphs = has_paragraphs(head)
    notes.append(f"{name}: " + ("paragraphs between blank lines are rows." if paragraphs else "every line is a row."))
    return read_text(stream, paragraphs)


def _head(stream: IO[bytes]) -> bytes:
    head = stream.read(_SNIFF_BYTES)
    stream.seek(0)
    return head


def _gunzip_head(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _SNIFF_BYTES)
    except zlib.error:
        return b""


def _is_list(head: bytes) -> bool:
    """A .jsonl that is a .json list: its first line opens a list of objects and is not itself a row."""
    first, newline, _ = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    if not first.startswith(b"["):
        return False
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return not newline or first.strip() in (b"[", b"[{") or first.rstrip().endswith((b",", b"{", b"["))
    rows = isinstance(value, list) and all(isinstance(e, dict) for e in value)
    return rows and bool(value) and not any({"role", "from"} & set(e) for e in value)


def _is_lines(head: bytes) -> bool:
    """A .json that is a .jsonl: two objects on the first two lines, or a first line that is a whole object."""
    lines = [line for line in head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 40)[:40] if line.strip()]
    if len(lines) < 2 or not lines[0].lstrip().startswith(b"{"):
        return False
    for line in lines[:2]:
        try:
            if isinstance(json.loads(line), dict):
                return True
        except (ValueError, RecursionError):
            continue
    return False


class _Watched(io.RawIOBase):
    """A file that says how far it has been read."""

    def __init__(self, plain: IO[bytes], on_bytes: Callable[[int], None] | None) -> None:
        self.plain, self.on_bytes, self.done = plain, on_bytes, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
        count = self.plain.readinto(buffer)  # type: ignore[attr-defined]
        self.done += count
        if self.on_bytes:
            self.on_bytes(self.done)
        return count


class _Recoded(io.BufferedReader):
    """A UTF-16 file read as UTF-8."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(_Utf16(stream), 1 << 16)  # type: ignore[arg-type]


class _Utf16(io.RawIOBase):
    def __init__(self, stream: IO[bytes]) -> None:
        import codecs

        self.stream, self.decoder, self.rest, self.ended = (
            stream,
            codecs.getincrementaldecoder("utf-16")("replace"),
            b"",
            False,
        )

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
        while not self.rest and not self.ended:
            data = self.stream.read(1 << 16)
            self.ended = not data
            self.rest = self.decoder.decode(data, final=self.ended).encode("utf-8", "replace")
        part, self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)
