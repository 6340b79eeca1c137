"""What training took on this machine beside what was estimated, so that the next estimate is nearer.

One small file in the data folder: for each kind of run (model, kind, type, attention, plan) the last measured peak and
the estimate of the same run. Weights are known exactly; the other parts are scaled by what was measured of them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from bc250studio import paths
from bc250studio.board.fit import Alternative, Estimate
from bc250studio.board.presets import Chip
from bc250studio.jobs.folder import read_json
from bc250studio.models import memory_training
from bc250studio.models.describe import Description
from bc250studio.models.memory_training import DRIVER
from bc250studio.profiles import Profile

NEAREST, FARTHEST = 0.5, 3.0
"""A ratio outside is not the estimate's error but another program's memory or a broken file: left alone."""
KEPT = 200


def _file() -> Path:
    return paths.data_dir() / "memory-measured.json"


def key(profile: Profile, chip: Chip) -> str:
    """What two runs must share for the memory of one to say something about the other."""
    model, train = profile.model, profile.train
    device = "cpu" if memory_training.on_cpu(profile, chip) else chip.name
    return "|".join([model.base, profile.adapter.kind, model.precision, train.attention, train.recompute, device])


def ratio(estimate: Estimate, measured_bytes: int) -> float:
    """Measured over estimated, weights and driver left out on both sides."""
    weights = estimate.parts.get("weights", 0)
    expected = memory_training.in_allocator(estimate) - weights
    return (measured_bytes - weights) / expected if expected > 0 else 1.0


def remember(profile: Profile, chip: Chip, estimate: Estimate, measured_bytes: int) -> None:
    """Keep what this run showed."""
    found = ratio(estimate, measured_bytes)
    if not NEAREST <= found <= FARTHEST:
        return
    runs, name = read_json(_file()), key(profile, chip)
    runs.pop(name, None)
    runs[name] = {"ratio": round(found, 4), "measured_bytes": measured_bytes, "t": time.time()}
    paths.private_dir(paths.data_dir())
    paths.write_atomic(_file(), json.dumps(dict(list(runs.items())[-KEPT:]), indent=1))


def training(description: Description, profile: Profile, chip: Chip) -> Estimate:
    """``memory_training.training``, its parts scaled by what an earlier run of this kind took on this machine."""
    estimate = memory_training.training(description, profile, chip)
    entry = read_json(_file()).get(key(profile, chip))
    scale = entry.get("ratio") if isinstance(entry, dict) else None
    if not isinstance(scale, (int, float)) or not NEAREST <= scale <= FARTHEST:
        return estimate
    known = [name for name in ("weights", DRIVER) if name in estimate.parts]
    parts = {name: size if name in known else int(size * scale) for name, size in estimate.parts.items()}
    fixed = sum(estimate.parts[name] for name in known)

    def nearer(other: Alternative) -> Alternative:
        return Alternative(other.words, min(other.total_bytes, fixed) + int(max(other.total_bytes - fixed, 0) * scale))

    remark = f"corrected by what the last run of this kind took here, × {scale:.2f} beside the weights"
    return Estimate(estimate.what, parts, tuple(nearer(other) for other in estimate.alternatives), remark)
