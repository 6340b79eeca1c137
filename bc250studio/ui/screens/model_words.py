"""What the model screen says of a model: its line in the list, and the paragraph below."""

from __future__ import annotations

from typing import Any

from textual.content import Content

from bc250studio.errors import BadInput, clean
from bc250studio.ui.hub import HubModel
from bc250studio.ui.local_models import LocalModel, weight_bytes
from bc250studio.ui.numbers import big, number, size

PATH_WIDTH = 76


def local_cells(model: LocalModel) -> tuple[str, ...]:
    """One line of the list of this machine."""
    if model.problem:
        return (clean(model.base, 60), "-", "-", "-", f"not here ({model.where})")
    return (
        clean(model.base, 60),
        big(model.parameters) if model.parameters else "-",
        size(model.size_bytes) if model.size_bytes else "-",
        model.architecture or "-",
        model.where,
    )


def hub_cells(model: HubModel) -> tuple[str, ...]:
    """One line of the hub's list."""
    return (
        model.id,
        big(model.parameters) if model.parameters else "-",
        size(model.size_bytes) if model.size_bytes else "-",
        model.licence,
        "gated" if model.gated else "open",
        big(model.downloads) if model.downloads is not None else "-",
    )


def about_hub(model: HubModel) -> Content:
    """A model that is not here yet."""
    count = big(model.parameters) if model.parameters else "an unstated number of"
    weights = size(model.size_bytes) if model.size_bytes else "size not stated"
    parts: list[Any] = [
        (f"{model.id}\n", "bold"),
        f"{count} parameters · {weights} · licence {model.licence}\n",
    ]
    if model.gated:
        parts.append((f"Gated: accept its terms on huggingface.co/{model.id}, set HF_TOKEN, then F5.\n", "$warning"))
    else:
        parts.append("Open to everybody; it is not on this machine yet: F5 fetches it.\n")
    return Content.assemble(*parts)


def describe_text(base: str) -> Content:
    """What a model is, in five lines.

    Raises:
        BadInput: there is no such model here.
    """
    from bc250studio.models.describe import describe
    from bc250studio.models.find import find

    if not base:
        raise BadInput("Type a model, or take one of the list with the arrow keys.")
    source = find(base)
    facts = describe(source)
    weights = weight_bytes(source)
    where = clean(source.gguf or source.folder)
    where = where if len(where) <= PATH_WIDTH else "…" + where[1 - PATH_WIDTH :]
    window = f", window {number(facts.sliding_window)}" if facts.sliding_window else ""
    return Content.assemble(
        (clean(source.name, 70), "bold"),
        "\n",
        f"{big(facts.parameters)} parameters · {size(weights) if weights else 'no weights here'} · "
        f"{clean(facts.model_type, 20)}, served as {clean(facts.gguf_arch, 20)} · "
        f"licence {clean(facts.licence or 'not stated', 30)}\n",
        f"{facts.layers} layers of {number(facts.hidden)} · {facts.heads} heads, {facts.kv_heads} for keys and "
        f"values · vocabulary {number(facts.vocab)}\n",
        f"context {number(facts.context)} tokens{window}\n",
        (where, "dim"),
    )
