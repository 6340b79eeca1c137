"""``compare A B``: configuration difference first, then losses, rates and how hot each began."""

from __future__ import annotations

import argparse
from typing import Any

from bc250studio import jobs, telemetry
from bc250studio.cli.common import emit, table
from bc250studio.pipeline.report import peaks
from bc250studio.pipeline.summary import summary
from bc250studio.profiles.profile import sections


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``compare``."""
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Compare."""
    pair = [jobs.find(options.a), jobs.find(options.b)]
    data: dict[str, Any] = {"configuration": differences(*pair), "results": [results(job) for job in pair]}
    rows = [(key, a, b) for key, (a, b) in data["configuration"].items()] or [("(same configuration)", "", "")]
    left, right = data["results"]
    rows += [("", "", "")]
    rows += [(key, _short(left.get(key)), _short(right.get(key))) for key in left.keys() | right.keys()]
    emit(data, options.json, table(("", pair[0].name[-24:], pair[1].name[-24:]), rows))
    return 0


def differences(a: jobs.JobFolder, b: jobs.JobFolder) -> dict[str, tuple[Any, Any]]:
    """Profile values in which two runs differ."""
    one, two = a.profile().profile, b.profile().profile
    found = {}
    for section, kind in sections().items():
        for key in kind.model_fields:
            pair = getattr(getattr(one, section), key), getattr(getattr(two, section), key)
            if pair[0] != pair[1]:
                found[f"{section}.{key}"] = pair
    return found


def results(job: jobs.JobFolder) -> dict[str, Any]:
    """Figures worth comparing; the start temperature keeps a hot start from looking like a slow recipe."""
    data = summary(job)
    board = telemetry.read_all(job.path / "board.jsonl")
    found = {
        "verdict": data.get("verdict"),
        "eval_loss_after": data.get("eval_loss_after"),
        "real_tokens_per_s": (data.get("rates") or {}).get("real_tokens_per_s"),
        "peak_memory_gib": data.get("peak_memory_gib"),
        "mean_kl": (data.get("proof") or {}).get("mean_kl"),
        **{f"peak_{key}": value for key, value in peaks(board).items()},
        **{f"start_{key}": value for key, value in peaks(board[:3]).items()},
    }
    return {key: value for key, value in found.items() if value is not None}


def _short(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
