"""Check a file without training on it: the verdict of every row, lengths, mask, packing, split; nothing is written."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from bc250studio.data import report as reports
from bc250studio.data.files import locate
from bc250studio.data.mask import Masker
from bc250studio.data.prepare import add_held, held_of, preference_words
from bc250studio.data.preview import Preview
from bc250studio.data.recognise import Recognition, recognise
from bc250studio.data.seen import digest64
from bc250studio.data.split import choose
from bc250studio.data.thinking import settle_thinking
from bc250studio.data.walk import Tally, walk
from bc250studio.errors import BadInput
from bc250studio.jobs import all_jobs
from bc250studio.jobs.progress import Progress, silent
from bc250studio.models.find import ModelSource
from bc250studio.models.tokenizer import load_tokenizer
from bc250studio.profiles import Profile


@dataclass
class Checked:
    """``report`` is plain data (see :mod:`report`); ``preview`` holds rows to look at."""

    recognition: Recognition
    report: dict[str, Any]
    preview: Preview

    @property
    def learnable(self) -> bool:
        """Is anything left to learn?"""
        rows = self.report["rows"]
        labelled = self.report.get("tokens", {"labelled": 1})["labelled"]
        return bool(rows["used"] + rows["cut"]) and bool(labelled)


def look(profile: Profile) -> Recognition:
    """What ``data.path`` is; ``question`` and ``options`` are set when a person should choose.

    Raises:
        BadInput: nothing there, or nothing recognised.
    """
    dataset = locate(profile.data.path)
    return recognise(dataset.rows(), profile.data.format, profile.data.columns, dataset.name)


def check(
    profile: Profile, source: ModelSource | None, progress: Progress = silent, default_choice: bool = False
) -> Checked:
    """Walk over ``profile.data.path``. Without a model rows are judged by their shape, and no tokens are counted.

    ``default_choice`` takes the default of an ambiguity instead of raising.

    Raises:
        BadInput: the file cannot be read or recognised, or it is ambiguous (names the option).
    """
    data = profile.data
    dataset = locate(data.path, lambda text: progress(text, None, None))
    recognition = recognise(dataset.rows(), data.format, data.columns, dataset.name)
    if recognition.question and not default_choice:
        raise BadInput(f"{dataset.name}: {recognition.question}")
    masker = None
    if source is not None:
        tokenizer = load_tokenizer(source)
        thinking = settle_thinking(data.thinking, tokenizer, dataset.rows(), recognition, data.use_chosen)
        masker = Masker(tokenizer, data.train_on, thinking)
    tally = Tally()
    preview = Preview(masker.tokenizer if masker else None)
    preview.watch(tally)
    keys = array("Q")
    for learnt in walk(dataset, recognition, data, masker, tally, progress):
        preview.add(learnt)
        keys.append(digest64(learnt.chat.prompt_key))
    report = reports.build(
        dataset,
        recognition,
        tally,
        masker=masker,
        max_length=data.max_length,
        tokens_per_pass=profile.train.tokens_per_pass,
    )
    if recognition.format == "preference" and not data.use_chosen:
        report["notes"].insert(0, f"The file {preference_words(recognition)}")
    held = locate(data.eval_path) if data.eval_path else held_of(dataset)
    if masker is not None and held is not None:
        other = Tally()
        told = recognise(held.rows(), data.format, data.columns, held.name)
        prompts = {digest64(one.chat.prompt_key) for one in walk(held, told, data, masker, other, progress)}
        add_held(report, held, other, len(prompts & set(keys)))
    elif masker is not None:
        chosen = choose(keys, data.eval_fraction, profile.train.seed)
        counts = {"train": len(keys) - int(chosen.sum()), "evaluation": int(chosen.sum())}
        report["split"] = {**counts, "seed": profile.train.seed, "by": "prompt"}
    if source is not None and report["tokens"]["all"]:
        report["time"] = estimated_time(profile, report["tokens"]["all"])
    return Checked(recognition, report, preview)


def estimated_time(profile: Profile, tokens_per_epoch: int) -> dict[str, Any]:
    """How long an epoch takes at the rate of the newest run with the same base; seconds are None without one."""
    for job in all_jobs():
        try:
            record, base = job.stage("train"), job.profile().profile.model.base
        except BadInput:
            continue
        rate = (record.get("rates") or {}).get("real_tokens_per_s")
        if base == profile.model.base and isinstance(rate, (int, float)) and rate > 0:
            seconds = round(tokens_per_epoch / rate, 1)
            return {"seconds_per_epoch": seconds, "real_tokens_per_s": rate, "from_run": job.name}
    return {"seconds_per_epoch": None, "why": "no finished run with this model to take the rate from"}
