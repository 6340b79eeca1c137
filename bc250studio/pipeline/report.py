"""The morning page: what a run came to, in words, from its folder alone. Also written as ``report.md``."""

from __future__ import annotations

import time
from typing import Any

from bc250studio import paths, telemetry
from bc250studio.errors import clean
from bc250studio.jobs import JobFolder
from bc250studio.pipeline.summary import sentence, summary

SHOWN_EVENTS = 25
QUIET = {"phase", "sample"}


def facts(job: JobFolder) -> dict[str, Any]:
    """Everything the page says, as data."""
    metrics = telemetry.read_all(job.path / "metrics.jsonl")
    board = telemetry.read_all(job.path / "board.jsonl")
    events = job.events()
    data = summary(job)
    losses = [m["loss"] for m in metrics if isinstance(m.get("loss"), (int, float))]
    evaluations = [(e.get("step"), e.get("loss")) for e in events if e.get("event") == "evaluation"]
    data["report"] = {
        "sentence": sentence(data),
        "profile": job.state().get("profile"),
        "created": job.state().get("created"),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "evaluations": evaluations,
        "skipped": len({m.get("step") for m in metrics if m.get("skipped")}),
        "pauses": sum(e.get("event") == "paused" for e in events),
        "paused_s": round(paused_seconds(events), 1),
        "stalls": sum(e.get("event") == "stall" for e in events),
        "peak": peaks(board),
        "events": [(e.get("t"), clean(e.get("text", ""))) for e in events if e.get("event") not in QUIET],
    }
    return data


def paused_seconds(events: list[dict[str, Any]]) -> float:
    """Seconds between each pause and what came after it: going on, a stop, or a start after a crash."""
    total, since = 0.0, None
    for event in events:
        t, kind = event.get("t"), event.get("event")
        if not isinstance(t, (int, float)):
            continue
        if kind == "paused" and since is None:
            since = t
        elif kind in ("resumed", "stopped", "error") and since is not None:
            total, since = total + max(t - since, 0.0), None
    return total


def peaks(board: list[dict[str, Any]]) -> dict[str, float]:
    """Highest trusted reading of each temperature and power in ``board.jsonl``, with its unit in the key."""
    found: dict[str, float] = {}
    for record in board:
        for key, reading in (record.get("readings") or {}).items():
            value = reading.get("value") if isinstance(reading, dict) else None
            if (
                key.endswith(("_temp_c", "_power_w"))
                and isinstance(value, (int, float))
                and reading.get("trust") == "good"
            ):
                found[key] = max(found.get(key, float("-inf")), float(value))
    return found


def markdown(job: JobFolder) -> str:
    """The page."""
    data = facts(job)
    told = data["report"]
    lines = [f"# {job.name}", "", f"**{told['sentence']}**", ""]
    if isinstance(told["created"], (int, float)):
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(told["created"]))
        lines += [f"Profile {told['profile']}, started {started}.", ""]
    lines += ["| what | figure |", "| --- | --- |"]
    lines += [f"| {name} | {figure} |" for name, figure in _figures(data, told)]
    if data.get("answers"):
        lines += ["", "## Answers", ""]
        for answer in data["answers"]:
            lines.append(f"- **{clean(answer['prompt'])}**")
            for side in ("base", "tuned"):
                text = " ".join(clean((answer.get(side) or {}).get("text", "")).split())
                lines.append(f"  - {side}: {text}")
    lines += ["", "## What happened", ""]
    shown = told["events"][-SHOWN_EVENTS:]
    lines += [f"- {time.strftime('%H:%M:%S', time.localtime(t or 0))} {text}" for t, text in shown]
    return "\n".join(lines) + "\n"


def write(job: JobFolder) -> str:
    """Write ``report.md`` into the run's folder and return its text."""
    text = markdown(job)
    paths.write_atomic(job.path / "report.md", text)
    return text


def _figures(data: dict[str, Any], told: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []

    def row(name: str, value: object, form: str = "{}") -> None:
        if value is not None:
            rows.append((name, form.format(value)))

    row("evaluation loss before", data.get("eval_loss_before"), "{:.4f}")
    row("evaluation loss after", data.get("eval_loss_after"), "{:.4f}")
    row("training loss, first", told["first_loss"], "{:.4f}")
    row("training loss, last", told["last_loss"], "{:.4f}")
    row("steps", data.get("steps"))
    row("best step, the result", data.get("result_step") if data.get("result_step") != data.get("steps") else None)
    row("steps skipped", told["skipped"] or None)
    for key, value in (data.get("rates") or {}).items():
        row(key.replace("_per_s", " a second").replace("_", " "), value, "{:.0f}")
    row("device", data.get("device"))
    row("peak memory", data.get("peak_memory_gib"), "{:.2f} GiB")
    row("pauses", told["pauses"] or None, "{} (" + f"{told['paused_s']:.0f} s)")
    row("stalls", told["stalls"] or None)
    for key, value in told["peak"].items():
        unit = "°C" if key.endswith("_c") else "W"
        row(f"peak {key.rsplit('_', 1)[0].replace('_', ' ')}", value, "{:.0f} " + unit)
    proof = data.get("proof") or {}
    row("proof: mean KL", proof.get("mean_kl"), "{:.5f} nat")
    row("proof: top-1", proof.get("top1"), "{:.4f}")
    row("served by", (data.get("server") or {}).get("backend_words"))
    return rows
