"""Searching the hub for models, as rows for the model screen. Runs in a thread; the network may be absent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from bc250studio.errors import JobFailed, clean

TIMEOUT_S = 15.0
KEPT = 20
ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}
"""Bytes of a number by safetensors' name of its type; all others take one."""

PAGES = ("https://huggingface.co/", "http://huggingface.co/", "huggingface.co/", "https://hf.co/")


@dataclass(frozen=True)
class HubModel:
    """What the hub says of a model. ``gated``: its terms must be accepted before it can be fetched."""

    id: str
    parameters: int | None
    size_bytes: int | None
    licence: str
    gated: bool
    downloads: int | None


def plain_id(text: str) -> str:
    """What was pasted; the address of a hub page becomes the id."""
    text = text.strip()
    for prefix in PAGES:
        if text.startswith(prefix):
            return "/".join(text.removeprefix(prefix).split("?")[0].split("#")[0].strip("/").split("/")[:2])
    return text


def search(words: str) -> list[HubModel]:
    """Up to 20 models with safetensors, the most downloaded first.

    ``HF_ENDPOINT`` and ``HF_TOKEN`` are honoured as everywhere else.

    Raises:
        JobFailed: the hub cannot be reached, or answers something else.
    """
    import requests

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    token = os.environ.get("HF_TOKEN")
    parameters: list[tuple[str, str]] = [
        ("search", words), ("filter", "safetensors"), ("sort", "downloads"), ("direction", "-1"), ("limit", str(KEPT)),
        ("expand[]", "safetensors"), ("expand[]", "gated"), ("expand[]", "cardData"), ("expand[]", "downloads"),
    ]  # fmt: skip
    try:
        answer = requests.get(
            f"{endpoint}/api/models",
            params=parameters,
            timeout=TIMEOUT_S,
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        answer.raise_for_status()
        found = answer.json()
    except (requests.RequestException, ValueError) as error:
        raise JobFailed(
            f"The hub at {endpoint} cannot be searched: {type(error).__name__}. Is there a network?"
        ) from error
    if not isinstance(found, list):
        raise JobFailed(f"The hub at {endpoint} answered something that is no list of models.")
    return [_row(entry) for entry in found if isinstance(entry, dict) and entry.get("id")][:KEPT]


def fetched_bytes(base: str) -> int:
    """How much of a model lies in the hub cache already, unfinished files included."""
    from bc250studio.models.find import hub_cache

    folder = hub_cache() / f"models--{base.replace('/', '--')}" / "blobs"
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
    except OSError:
        return 0


def _row(entry: dict[str, Any]) -> HubModel:
    weights = entry.get("safetensors")
    weights = weights if isinstance(weights, dict) else {}
    by_type = weights.get("parameters")
    counts = {t: n for t, n in by_type.items() if isinstance(n, int)} if isinstance(by_type, dict) else {}
    card = entry.get("cardData")
    licence = card.get("license") if isinstance(card, dict) else None
    total, downloads = weights.get("total"), entry.get("downloads")
    return HubModel(
        id=clean(entry["id"], 96),
        parameters=total if isinstance(total, int) else None,
        size_bytes=sum(n * ELEMENT_BYTES.get(t, 1) for t, n in counts.items()) or None,
        licence=clean(licence, 24) if isinstance(licence, str) else "not stated",
        gated=bool(entry.get("gated")),
        downloads=downloads if isinstance(downloads, int) else None,
    )
