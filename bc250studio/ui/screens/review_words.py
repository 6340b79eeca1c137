"""What the review looks up, in threads: model, data, memory, export, heat, kernels, time. Each returns a paragraph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from textual.content import Content

from bc250studio import profiles
from bc250studio.errors import clean
from bc250studio.ui.measured import Measured
from bc250studio.ui.numbers import ago, big, duration, number, size
from bc250studio.ui.stage_words import table
from bc250studio.ui.words import hanging

WIDTH = 76
LABEL = 10
BAR = 12
NO_BREAK = "\u00a0"


def checks(resolved: profiles.Resolved) -> Content:
    """What a start would check: model, data, adapter, server binary, port, disk."""
    from bc250studio import pipeline
    from bc250studio.pipeline import preflight

    preflight.check(resolved, pipeline.STAGES)
    return Content.assemble((f"{'checks':<{LABEL}}", "bold"), ("✓ all that a start needs is here\n", "$success"))


def model(resolved: profiles.Resolved) -> Content:
    """Which model, where it is, how big."""
    from bc250studio.models.describe import describe
    from bc250studio.models.find import find

    source = find(resolved.profile.model.base, resolved.profile.model.revision)
    facts = describe(source)
    pieces = [clean(source.name, 200), f"{big(facts.parameters)} parameters", f"{facts.layers} layers"]
    if facts.licence:
        pieces.append(f"licence {clean(facts.licence, 30)}")
    return line("model", " · ".join(piece.replace(" ", NO_BREAK) for piece in pieces))


def data(resolved: profiles.Resolved) -> Content:
    """Which files, how big."""
    from bc250studio.data import files

    path = resolved.profile.data.path
    if path.startswith("hub:"):
        return line("data", f"{clean(path, 60)}, fetched by the run")
    found = files.locate(path)
    many = f"{len(found.files)} files, " if len(found.files) > 1 else ""
    notes = "".join(f"; {clean(note, 100)}" for note in found.notes)
    return line("data", f"{clean(path, 200)} · {many}{size(found.size_bytes)}{notes}")


def export(resolved: profiles.Resolved) -> Content:
    """As what it will leave, and why."""
    from bc250studio.export import rules
    from bc250studio.models.describe import describe
    from bc250studio.models.find import find

    facts = describe(find(resolved.profile.model.base, resolved.profile.model.revision))
    route = rules.route(resolved.profile, facts)
    words = {
        "adapter": "a LoRA adapter as GGUF beside the base's GGUF; the scale can be switched while serving",
        "merged": "one merged GGUF, base and tuned weights together",
    }
    why = "; ".join(clean(reason, 120) for reason in route.reasons)
    return line("export", words.get(route.kind, route.kind) + (f": {why}" if why else ""))


def thermal(resolved: profiles.Resolved) -> Content:
    """When it waits for the board."""
    limits = resolved.profile.thermal
    start = f"starts below {limits.start_below_c:g} °C" if limits.start_below_c else "starts at once"
    pause = (
        f"pauses at {limits.pause_at_c:g} °C"
        if limits.pause_at_c
        else "pauses 6 °C above the chip's throttle point, at most at 90 °C"
    )
    return line("heat", f"{start}, {pause}")


def kernels(resolved: profiles.Resolved) -> Content:
    """Which matrix kernels the run will load, and why."""
    from bc250studio.board import presets
    from bc250studio.kernels import switch

    decision = switch.decide(resolved.profile, presets.detect())
    why = decision.why[:1].lower() + decision.why[1:]
    return line("kernels", f"{resolved.profile.kernels.library}: {clean(why, 300)}")


def memory(resolved: profiles.Resolved) -> Content:
    """Does it fit, part by part, and which setting would make it fit."""
    from bc250studio.board import fit, presets
    from bc250studio.models import memory as serving
    from bc250studio.models import memory_measured
    from bc250studio.models.describe import describe
    from bc250studio.models.find import find

    profile = resolved.profile
    source = find(profile.model.base, profile.model.revision)
    facts = describe(source)
    machine = fit.facts("/", profile.thermal.min_available_mib, profile.model.device)
    training = fit.judge(memory_measured.training(facts, profile, presets.detect()), machine)
    wanted = profile.export.quantisation
    serve = serving.serving(
        facts,
        quantisation="q4_k_m" if wanted == "auto" else wanted,
        file_bytes=source.gguf.stat().st_size if source.gguf else None,
        context=profile.serve.context,
        key_type=profile.serve.cache_type_k,
        value_type=profile.serve.cache_type_v,
        batch=profile.serve.batch,
        rank=profile.adapter.rank if profile.adapter.kind == "lora" else 0,
    )
    return memory_text(training.as_dict(), fit.judge(serve, machine).as_dict(), machine.others)


def memory_text(training: dict[str, Any], serving: dict[str, Any], others: tuple[str, ...] = ()) -> Content:
    """Training by part with bars, serving in a line."""
    parts: list[Any] = [("memory".ljust(LABEL), "bold"), *_verdict(training)]
    pieces = {clean(name, 40): count for name, count in training["parts"].items() if count}
    most = max(pieces.values(), default=1)
    for name, count in pieces.items():
        bar = "▇" * max(1, round(BAR * count / most))
        parts.append((f"{'':<{LABEL + 2}}{name:<38}{size(count):>9}  {bar}\n", "dim"))
    parts += [f"{'':<{LABEL}}", *_verdict(serving)]
    if others:
        named = ", ".join(clean(other, 30) for other in others[:6])
        parts.append((hanging(" " * LABEL, f"also running and holding memory: {named}", WIDTH) + "\n", "$warning"))
    return Content.assemble(*parts)


def _verdict(fit: dict[str, Any]) -> list[Any]:
    sign = {"fits": "✓", "tight": "!", "does not fit": "✗"}.get(fit["verdict"], "·")
    style = {"fits": "$success", "tight": "$warning"}.get(fit["verdict"], "$error")
    text = f"{sign} {fit['verdict']}: {clean(fit['why'], 400)}"
    return [(hanging(" " * LABEL, text, WIDTH)[LABEL:] + "\n", style)]


def rows(found: Any, resolved: profiles.Resolved) -> tuple[Content, float | None]:
    """`data check` in a line, and the tokens a whole training sees."""
    rows_, tokens, packing, split = (table(found, key) for key in ("rows", "tokens", "packing", "split"))
    train = resolved.profile.train
    text = f"{number(rows_.get('used'))} of {number(rows_.get('total'))} rows used"
    text += "".join(f", {number(rows_[name])} {name}" for name in ("cut", "dropped") if rows_.get(name))
    text += f"; {number(tokens.get('all'))} tokens, {number(tokens.get('labelled_percent'))} % learnt"
    per_epoch, kept = packing.get("tokens_per_epoch"), split.get("train")
    if not isinstance(per_epoch, (int, float)):
        return line("rows", text), None
    if isinstance(kept, int) and isinstance(split.get("evaluation"), int) and kept:
        per_epoch *= kept / (kept + split["evaluation"])
        text += f"; {number(split['evaluation'])} kept for evaluation"
    steps = train.steps or max(1, math.ceil(per_epoch * train.epochs / train.tokens_per_step))
    epochs = train.epochs if train.steps is None else steps * train.tokens_per_step / per_epoch
    about = "" if train.steps else "about "
    text += f"; {about}{number(steps)} steps of {number(train.tokens_per_step)} tokens, {epochs:.3g} epochs"
    return line("rows", text), per_epoch * epochs


def time(total_tokens: float | None, measured: Measured | None) -> Content:
    """How long the training takes at the rate of an earlier run, or that there is none."""
    if measured is None:
        return line(
            "time", "not known: no run of this model has been trained on this machine; h rehearses it and measures"
        )
    rate = f"{number(measured.tokens_per_s)} real tokens/s of {clean(measured.run, 40)} ({ago(measured.age_s)})"
    if total_tokens is None:
        return line("time", f"not known for these rows; this model trained at {rate}")
    text = f"about {duration(total_tokens / measured.tokens_per_s)} of training, at the {rate}"
    return line("time", text + (f"; {measured.remark}" if measured.remark else ""))


LOOKS: dict[str, Callable[[profiles.Resolved], Any]] = {
    "checks": checks,
    "model": model,
    "data": data,
    "memory": memory,
    "export": export,
    "heat": thermal,
    "kernels": kernels,
}


def line(name: str, text: str) -> Content:
    """A labelled paragraph, wrapped under its text."""
    label = f"{name:<{LABEL}}"
    wrapped = hanging(" " * LABEL, text, WIDTH)[LABEL:].replace(NO_BREAK, " ")
    return Content.assemble((label, "bold"), f"{wrapped}\n")
