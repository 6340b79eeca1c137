"""From a profile to rows of token ids: read, recognise, render, mask, split, and remember the result.

Ids are spooled to disk while the file is read, so memory does not follow its size; the result is memory-mapped. It
is cached under the digest of everything that decides it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bc250studio import paths
from bc250studio.data import report as reports
from bc250studio.data.files import Dataset, locate
from bc250studio.data.mask import Masker
from bc250studio.data.recognise import Recognition, recognise
from bc250studio.data.rows import Prepared, Rows
from bc250studio.data.seen import digest64
from bc250studio.data.split import choose
from bc250studio.data.thinking import settle_thinking
from bc250studio.data.walk import Tally, walk
from bc250studio.errors import BadInput
from bc250studio.jobs.progress import Progress, silent
from bc250studio.models.find import ModelSource
from bc250studio.models.tokenizer import Tokenizer, load_tokenizer
from bc250studio.profiles import Profile

_FORMAT_VERSION = 1
_KEPT_CACHES = 12
_STALE_SECONDS = 24 * 3600


def prepare(profile: Profile, source: ModelSource, progress: Progress | None = None, cache: bool = True) -> Prepared:
    """The training and evaluation rows of ``profile.data`` for the model ``source``.

    Raises:
        BadInput: the data cannot be read or recognised, needs a choice, or holds nothing to learn.
    """
    say = progress or silent
    say("Looking at the data", None, None)
    data = profile.data
    dataset = locate(data.path, lambda text: say(text, None, None))
    held = locate(data.eval_path) if data.eval_path else held_of(dataset)
    tokenizer = load_tokenizer(source)
    digest = _digest(profile, tokenizer, dataset, held)
    folder = paths.cache_dir() / "prepared" / digest
    if cache:
        found = _load(folder, digest)
        if found is not None:
            say(f"Prepared before: {len(found.train):,} rows to learn from", 1, 1)
            return found
    paths.private_dir(folder.parent)
    with tempfile.TemporaryDirectory(prefix=f".{digest[:12]}-", dir=folder.parent) as temporary:
        try:
            _write(Path(temporary), profile, tokenizer, dataset, held, say)
        except OSError as error:
            raise BadInput(
                f"The prepared data cannot be written to {folder.parent}: {error.strerror or error}."
            ) from error
        loaded = _load(Path(temporary), digest, mapped=cache)
        assert loaded is not None
        if cache:
            _keep(Path(temporary), folder)
            return _load(folder, digest) or loaded
    return loaded


def settle(dataset: Dataset, format: str, columns: dict[str, str], use_chosen: bool) -> Recognition:
    """Recognise a dataset for work without a person: every open question is an error that names the option.

    Raises:
        BadInput: unknown or ambiguous format, or preference rows without ``use_chosen``.
    """
    recognition = recognise(dataset.rows(), format, columns, dataset.name)
    if recognition.question:
        raise BadInput(f"{dataset.name}: {recognition.question}")
    if recognition.format == "preference" and not use_chosen:
        raise BadInput(f"{dataset.name} {preference_words(recognition)}")
    return recognition


def preference_words(recognition: Recognition) -> str:
    """What a preference file is, and what can be done with it."""
    kind = (
        "holds answers marked as good or bad (KTO rows)"
        if recognition.kto
        else "holds pairs of a chosen and a rejected answer (preference rows, as for DPO)"
    )
    return (
        f"{kind}, which supervised training cannot use as they are;"
        " data.use_chosen = true (--use-chosen) trains on the good answers alone."
    )


def held_of(dataset: Dataset) -> Dataset | None:
    """The files that a folder sets apart for evaluation, as a dataset."""
    return Dataset(dataset.name, dataset.evaluation) if dataset.evaluation else None


def _digest(profile: Profile, tokenizer: Tokenizer, dataset: Dataset, held: Dataset | None) -> str:
    settings = profile.data.model_dump(exclude={"path", "eval_path"})
    dated = date.today().isoformat() if "strftime_now" in tokenizer.template else ""
    whole = [_FORMAT_VERSION, settings, profile.train.seed, profile.train.tokens_per_pass, tokenizer.fingerprint, dated,
             dataset.digest(), held.digest() if held else ""]  # fmt: skip
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


# -- writing


@dataclass
class _Spool:
    """Examples on disk in the order they were read: ids, labels and what they say; lengths and keys in memory."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self.lengths: list[int] = []
        self.keys: list[int] = []
        self.ends: list[int] = [0]
        self._ids: IO[bytes] = (self.folder / f"{self.name}.ids").open("wb")
        self._labels: IO[bytes] = (self.folder / f"{self.name}.labels").open("wb")
        self._chats: IO[bytes] = (self.folder / f"{self.name}.chats").open("wb")

    def fill(
        self, dataset: Dataset, recognition: Recognition, profile: Profile, masker: Masker, say: Progress
    ) -> Tally:
        tally = Tally()
        for learnt in walk(dataset, recognition, profile.data, masker, tally, say):
            self._ids.write(np.array(learnt.ids, np.int32).tobytes())
            self._labels.write(np.array(learnt.labelled, np.bool_).tobytes())
            line = json.dumps([learnt.example.messages, learnt.example.tools]).encode() + b"\n"
            self._chats.write(line)
            self.ends.append(self.ends[-1] + len(line))
            self.lengths.append(len(learnt.ids))
            self.keys.append(digest64(learnt.chat.prompt_key))
        for stream in (self._ids, self._labels, self._chats):
            stream.close()
        return tally

    def rows(self, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.int64]]:
        """The wanted examples laid end to end (ids, labels, offsets)."""
        lengths = np.array(self.lengths, np.int64)
        picked = lengths[wanted]
        offsets = np.concatenate([[0], np.cumsum(picked)]).astype(np.int64)
        each = np.repeat(wanted, lengths)
        if not len(each):
            return np.zeros(0, np.int32), np.zeros(0, np.bool_), offsets
        ids = np.memmap(self.folder / f"{self.name}.ids", np.int32, "r")[each]
        labels = np.memmap(self.folder / f"{self.name}.labels", np.bool_, "r")[each]
        return ids, labels, offsets

    def chats(self, wanted: NDArray[np.bool_]) -> list[Any]:
        """[messages, tools] of the wanted examples."""
        found = []
        with (self.folder / f"{self.name}.chats").open("rb") as stream:
            for index in np.flatnonzero(wanted):
                stream.seek(self.ends[index])
                found.append(json.loads(stream.read(self.ends[index + 1] - self.ends[index])))
        return found


def _write(
    folder: Path, profile: Profile, tokenizer: Tokenizer, dataset: Dataset, held: Dataset | None, say: Progress
) -> None:
    data = profile.data
    recognition = settle(dataset, data.format, data.columns, data.use_chosen)
    thinking = settle_thinking(data.thinking, tokenizer, dataset.rows(), recognition, data.use_chosen)
    masker = Masker(tokenizer, data.train_on, thinking)
    spool = _Spool(folder, "all")
    tally = spool.fill(dataset, recognition, profile, masker, say)
    report = reports.build(
        dataset,
        recognition,
        tally,
        masker=masker,
        max_length=data.max_length,
        tokens_per_pass=profile.train.tokens_per_pass,
    )
    if not tally.labelled or not sum(tally.labelled):
        raise BadInput(nothing_to_learn(dataset.name, tally, sum(tally.full_lengths)))
    everything = np.ones(len(spool.keys), np.bool_)
    if held is not None:
        other = _Spool(folder, "held")
        held_recognition = settle(held, data.format, data.columns, data.use_chosen)
        held_tally = other.fill(held, held_recognition, profile, Masker(tokenizer, data.train_on, thinking), say)
        add_held(report, held, held_tally, len(set(other.keys) & set(spool.keys)))
        parts = {"train": spool.rows(everything), "evaluation": other.rows(np.ones(len(other.keys), np.bool_))}
        chats = other.chats(np.ones(len(other.keys), np.bool_))
    else:
        chosen = choose(spool.keys, data.eval_fraction, profile.train.seed)
        parts = {"train": spool.rows(~chosen), "evaluation": spool.rows(chosen)}
        chats = spool.chats(chosen)
    if not len(parts["evaluation"][0]):
        report["notes"].append("No rows are kept away from training, so there is no loss on unseen rows.")
    report["split"] = {
        "train": len(parts["train"][2]) - 1,
        "evaluation": len(parts["evaluation"][2]) - 1,
        "seed": profile.train.seed,
        "by": "file" if held is not None else "prompt",
    }
    for name, (ids, labels, offsets) in parts.items():
        np.save(folder / f"{name}-ids.npy", ids)
        np.save(folder / f"{name}-labels.npy", labels)
        np.save(folder / f"{name}-offsets.npy", offsets)
    for leftover in [*folder.glob("*.ids"), *folder.glob("*.labels"), *folder.glob("*.chats")]:
        leftover.unlink()
    (folder / "chats.json").write_text(json.dumps(chats))
    (folder / "report.json").write_text(json.dumps(report))


def add_held(report: dict[str, Any], held: Dataset, tally: Tally, leaked: int) -> None:
    """What a separate evaluation file is, and a warning when ``leaked`` of its prompts are trained on."""
    report["evaluation_file"] = {"path": held.name, "rows": _counts(tally), "reasons": dict(tally.reasons)}
    if leaked:
        report["notes"].append(
            f"{leaked:,} prompts of the evaluation file are trained on as well: its loss flatters the model."
        )


def _counts(tally: Tally) -> dict[str, int]:
    return {"total": tally.total, "used": tally.used, "cut": tally.cut, "dropped": tally.dropped}


def nothing_to_learn(name: str, tally: Tally, token_count: int) -> str:
    """Why training cannot start: 0 labels, and the commonest reasons."""
    why = ", ".join(f"{reason} {count:,}" for reason, count in tally.reasons.most_common(3))
    return (
        f"{name}: 0 of {token_count:,} tokens have labels, so there is nothing to learn"
        f" ({tally.dropped:,} of {tally.total:,} rows dropped{': ' + why if why else ''});"
        " `bc250studio data check` shows every row."
    )


# -- cache


def _load(folder: Path, digest: str, mapped: bool = True) -> Prepared | None:
    """What a folder of the cache holds, or None when it is not there or not whole."""
    try:
        parts = {
            name: Rows(*(_array(folder / f"{name}-{part}.npy", mapped) for part in ("ids", "labels", "offsets")))
            for name in ("train", "evaluation")
        }
        report = json.loads((folder / "report.json").read_text())
        chats = json.loads((folder / "chats.json").read_text())
    except (OSError, ValueError):
        return None
    for rows in parts.values():
        if len(rows.ids) != rows.offsets[-1] or len(rows.labelled) != len(rows.ids):
            return None
    return Prepared(
        train=parts["train"],
        evaluation=parts["evaluation"],
        digest=digest,
        report=report,
        eval_chats=[messages for messages, _ in chats],
        eval_tools=[tools for _, tools in chats],
        thinking=report.get("thinking"),
    )


def _array(file: Path, mapped: bool) -> NDArray[Any]:
    array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    return array if mapped else np.array(array)


def _keep(temporary: Path, folder: Path) -> None:
    """Move a finished folder into the cache and forget the oldest ones.

    Another process may publish the same data at the same time: then its folder stays.
    """
    if folder.exists() and _load(folder, folder.name) is None:  # torn
        shutil.rmtree(folder, ignore_errors=True)
    try:
        temporary.rename(folder)
    except OSError:
        return
    temporary.mkdir()  # TemporaryDirectory removes what it made
    inside = [p for p in folder.parent.iterdir() if p.is_dir()]
    whole = [p for p in inside if re.fullmatch(r"[0-9a-f]{64}", p.name)]
    left = [p for p in inside if p.name.startswith(".") and p.stat().st_mtime < time.time() - _STALE_SECONDS]
    for old in [*left, *sorted(whole, key=lambda p: p.stat().st_mtime, reverse=True)[_KEPT_CACHES:]]:
        shutil.rmtree(old, ignore_errors=True)
