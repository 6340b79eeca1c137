"""Searching the hub for models, as rows for the model screen. Runs in a thread; the network may be absent."""

from __future__ import annotations

import os
from typing import Any

from bc250studio.errors import JobFailed, clean
from bc250studio.ui.numbers import big

TIMEOUT_S = 15.0
KEPT = 20


def search(words: str) -> list[tuple[str, str]]:
    """(id, what is said of it) of up to 20 models with safetensors, the most downloaded first.

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
    return [_row(entry) for entry in found if isinstance(entry, dict) and entry.get("id")][:KEPT]


def _row(entry: dict[str, Any]) -> tuple[str, str]:
    weights = entry.get("safetensors")
    count = weights.get("total") if isinstance(weights, dict) else None
    card = entry.get("cardData")
    licence = card.get("license") if isinstance(card, dict) else None
    said = [f"{big(count)} parameters" if count else "size not stated", clean(licence or "no licence stated", 24)]
    if entry.get("gated"):
        said.append("gated: accept its terms first")
    said.append(f"{big(entry.get('downloads'))} downloads")
    return clean(entry["id"], 96), " · ".join(said)
