"""Is the thinking switch of a template on or off? Told by the profile, else by the rows themselves.

llama-server always sets ``enable_thinking`` (on, unless asked otherwise) for a template that reads it, so leaving it
open would train on one prompt and serve another. Rows with thoughts are trained with the switch on, rows without with
the switch off; serving takes the same (``Prepared.thinking``).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from bc250studio.data.files import locate
from bc250studio.data.raw import Raw
from bc250studio.data.recognise import SAMPLE_ROWS, Recognition, recognise, sample
from bc250studio.data.shape import Chat, shape
from bc250studio.data.verdict import Dropped
from bc250studio.errors import BadInput
from bc250studio.models.find import ModelSource
from bc250studio.models.tokenizer import Tokenizer, load_tokenizer
from bc250studio.profiles import Profile


def has_thought(chat: Chat) -> bool:
    """Does an answer of the chat carry reasoning, as a field or between think tags?"""
    return any(
        m["role"] == "assistant" and (m.get("reasoning_content") or "</think>" in str(m.get("content") or ""))
        for m in chat.messages
    )


def settle_thinking(
    told: bool | None, tokenizer: Tokenizer, rows: Iterable[Raw], recognition: Recognition, use_chosen: bool = False
) -> bool | None:
    """The switch to render with: as told, None for a template without one, else as most rows of a sample are."""
    if told is not None or not tokenizer.supports("enable_thinking"):
        return told
    with_thought = without = 0
    for raw in islice(sample(rows), SAMPLE_ROWS):
        try:
            chat = shape(raw.value, recognition, use_chosen=use_chosen)
        except Dropped:
            continue
        if has_thought(chat):
            with_thought += 1
        else:
            without += 1
    return with_thought > without


def served(profile: Profile, source: ModelSource) -> bool | None:
    """The switch that serving must use for what ``profile`` trains: the one its rows are rendered with.

    None for a template without a switch, and where the data cannot be read any more.
    """
    if profile.data.thinking is not None:
        return profile.data.thinking
    data = profile.data
    try:
        tokenizer = load_tokenizer(source)
        if not tokenizer.supports("enable_thinking"):
            return None
        dataset = locate(data.path)
        recognition = recognise(dataset.rows(), data.format, data.columns, dataset.name)
        return settle_thinking(None, tokenizer, dataset.rows(), recognition, data.use_chosen)
    except BadInput:
        return None
