"""``serve --tune``: which server settings are fastest here and still right? One change at a time, proved each time.

Batch, flash attention, cache types and a few switches of the Vulkan backend are tried from where the profile
stands; a change stays when the rates rise by over 3 % and the KL to the reference stays within the limit. The
winner is kept for this binary, model file and device, and used wherever the profile leaves the default.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.errors import StudioError, clean
from bc250studio.jobs.folder import read_json
from bc250studio.jobs.progress import Progress, silent
from bc250studio.profiles.profile import Serve
from bc250studio.serve import divergence, prove, rates, server
from bc250studio.serve.binary import Binary, choose_device
from bc250studio.serve.reference import ADAPTER, MERGED, Reference
from bc250studio.serve.server import Plan

GAIN = 1.03
DEPTHS = (64, 512, 2048)
SAMPLE = 48
KNOBS = ("batch", "flash_attention", "cache_type_k", "cache_type_v")
VULKAN_SWITCHES = ("GGML_VK_ALLOW_GRAPHICS_QUEUE", "GGML_VK_DISABLE_MMVQ", "GGML_VK_DISABLE_INTEGER_DOT_PRODUCT")


@dataclass(frozen=True)
class Trial:
    """One setting measured. ``score``: geometric mean of all rates, tokens a second; ``kl`` in nats."""

    words: str
    plan: Plan
    score: float
    kl: float | None
    rates: dict[str, dict[str, float | bool]]
    error: str = ""
    accepted: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        return {
            "setting": self.words,
            "score": round(self.score, 2),
            "kl": None if self.kl is None else round(self.kl, 6),
            "rates": self.rates,
            "accepted": self.accepted,
            "error": self.error or None,
        }


def candidates(plan: Plan, binary: Binary, vulkan: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes to try, in order; what the binary does not have is left out."""
    for batch in (64, 128, 256, 512):
        yield f"batch {batch}", {"batch": batch}
    for value in ("on", "off"):
        if binary.allows("--flash-attn", value):
            yield f"flash attention {value}", {"flash_attention": value}
    if binary.allows("--cache-type-k", "q8_0"):
        yield "cache q8_0", {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attention": "auto"}
    if vulkan:
        for switch in VULKAN_SWITCHES:
            yield f"{switch}=1", {"environment": {switch: "1"}}


def tune(
    folder: Path, plan: Plan, binary: Binary, reference: Reference | None, limit_kl: float, progress: Progress = silent
) -> tuple[Plan, list[Trial]]:
    """The best plan found and everything that was tried; ``folder`` gets the trial servers."""
    vulkan = choose_device(binary, plan.device)[1].backend == "Vulkan"
    best = _try("as it is", plan, folder, binary, reference, progress)
    if best.error:
        raise_again(best)
    trials = [replace(best, accepted=True)]
    for words, change in candidates(plan, binary, vulkan):
        changed = dict(change)
        if "environment" in changed:
            changed["environment"] = {**best.plan.environment, **changed["environment"]}
        wanted = replace(best.plan, **changed)
        if wanted == best.plan:
            continue
        trial = _try(words, wanted, folder, binary, reference, progress)
        good = not trial.error and trial.score > GAIN * best.score and (trial.kl is None or trial.kl <= limit_kl)
        trials.append(replace(trial, accepted=good))
        if good:
            best = trial
    return best.plan, trials


def raise_again(trial: Trial) -> None:
    """The setting everything is compared with must work."""
    from bc250studio.errors import JobFailed

    raise JobFailed(f"The server does not even run as the profile says: {trial.error}")


def _try(
    words: str, plan: Plan, folder: Path, binary: Binary, reference: Reference | None, progress: Progress
) -> Trial:
    progress(f"trying {words}", None, None)
    try:
        started = server.start(folder, plan, binary)
        talk = started.talk()
        found: dict[str, dict[str, float | bool]] = {}
        values: list[float] = []
        for depth in DEPTHS:
            if depth + 40 > started.n_ctx:
                continue
            measured = rates.measure(replace(talk, has_adapter=False), 1.0, depth, 24, repeats=2)
            found[str(depth)] = measured.as_dict()
            values += [measured.prompt_per_s, measured.tokens_per_s]
        kl = None
        if reference is not None:
            rows = prove.spread(reference.count, SAMPLE)
            judge = reference.variants.get(MERGED) if plan.adapter is None else None
            tops = prove.collect(replace(talk, has_adapter=False), reference, 1.0, prove.guard_token(talk), rows)
            kl = divergence.distance(judge or reference.variants[ADAPTER], tops, rows).mean_kl
        score = math.exp(sum(math.log(max(value, 1e-6)) for value in values) / len(values)) if values else 0.0
        return Trial(words, plan, score, kl, found)
    except StudioError as error:
        return Trial(words, plan, 0.0, None, {}, clean(error, 200))
    finally:
        server.stop_folder(folder)


def _file(binary: Binary, plan: Plan, device: str) -> Path:
    stat = plan.model.stat()
    key = f"{binary.path}|{binary.version}|{plan.model.resolve()}|{stat.st_size}|{device}|{plan.adapter is not None}"
    return paths.data_dir() / "tuned" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def keep(binary: Binary, plan: Plan, trials: list[Trial]) -> Path:
    """Store the winner for this binary, model file and device."""
    device = choose_device(binary, plan.device)[1]
    file = _file(binary, plan, device.words)
    paths.private_dir(file.parent)
    record = {
        "binary": str(binary.path),
        "version": binary.version,
        "model": str(plan.model),
        "device": device.words,
        "settings": {knob: getattr(plan, knob) for knob in KNOBS},
        "environment": dict(plan.environment),
        "trials": [trial.as_dict() for trial in trials],
    }
    paths.write_atomic(file, json.dumps(record, indent=1))
    return file


def applied(plan: Plan, binary: Binary) -> Plan:
    """``plan`` with what was tuned for it, where it still has the profile's defaults."""
    try:
        record = read_json(_file(binary, plan, choose_device(binary, plan.device)[1].words))
    except (OSError, StudioError):
        return plan
    changes: dict[str, Any] = {}
    defaults = Serve.model_validate({})
    settings = record.get("settings")
    for knob in KNOBS:
        value = settings.get(knob) if isinstance(settings, dict) else None
        if value is not None and getattr(plan, knob) == getattr(defaults, knob):
            changes[knob] = value
    environment = record.get("environment")
    if isinstance(environment, dict):
        changes["environment"] = {
            name: str(value) for name, value in environment.items() if name in VULKAN_SWITCHES
        } | dict(plan.environment)
    try:
        checked = Serve.model_validate(defaults.model_dump() | {k: v for k, v in changes.items() if k in KNOBS})
    except ValueError:
        return plan
    return replace(plan, **{k: getattr(checked, k) if k in KNOBS else v for k, v in changes.items()})
