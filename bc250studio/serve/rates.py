"""Tokens a second of a running server, measured the way they are shown: medians over repeats, nothing cached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bc250studio.serve.talk import Answer, Talk

TEXT = "The board computes while the fan turns and the light is green. "


@dataclass(frozen=True)
class Rates:
    """Medians in tokens a second; ``text`` is what was answered (the same each time, or the server is not sound)."""

    prompt_per_s: float
    tokens_per_s: float
    text: str
    steady: bool

    def as_dict(self) -> dict[str, float | bool]:
        """For records; without the text."""
        return {"prompt_per_s": self.prompt_per_s, "tokens_per_s": self.tokens_per_s, "steady": self.steady}


def prompt_ids(talk: Talk, tokens: int) -> list[int]:
    """A prompt of exactly ``tokens`` tokens."""
    once = talk.tokenize(TEXT) or [0]
    return (once * (tokens // len(once) + 1))[:tokens]


def once(talk: Talk, ids: Sequence[int], answer_tokens: int, scale: float) -> Answer:
    """One greedy answer of exactly ``answer_tokens`` tokens, its prompt computed anew."""
    return talk.complete(ids, answer_tokens, scale, cache_prompt=False, ignore_eos=True)


def summed(answers: Sequence[Answer]) -> Rates:
    """Medians of several answers to the same prompt."""
    return Rates(
        round(statistics.median(answer.prompt_per_s for answer in answers), 2),
        round(statistics.median(answer.tokens_per_s for answer in answers), 2),
        answers[0].text,
        len({answer.text for answer in answers}) == 1,
    )


def measure(talk: Talk, scale: float, prompt_tokens: int = 128, answer_tokens: int = 32, repeats: int = 3) -> Rates:
    """After one unmeasured answer (shaders compile on the first), the median of ``repeats``."""
    ids = prompt_ids(talk, prompt_tokens)
    once(talk, ids, answer_tokens, scale)
    return summed([once(talk, ids, answer_tokens, scale) for _ in range(repeats)])


SLOW_PER_S = 4.0
"""Below this one measured answer must do: a reader does not wait minutes for a second decimal."""


def price(talk: Talk, prompt_tokens: int = 64, answer_tokens: int = 32, repeats: int = 3) -> dict[str, Rates]:
    """What the adapter costs: ``base`` (scale 0, llama-server leaves it out) and ``tuned``, by turns on one server."""
    ids = prompt_ids(talk, prompt_tokens)
    scales = {"base": 0.0, "tuned": 1.0}
    first = [once(talk, ids, answer_tokens, scale) for scale in scales.values()]  # shaders compile on the first
    if min(answer.tokens_per_s for answer in first) < SLOW_PER_S:
        repeats = 1
    answers: dict[str, list[Answer]] = {side: [] for side in scales}
    for _ in range(repeats):
        for side, scale in scales.items():
            answers[side].append(once(talk, ids, answer_tokens, scale))
    return {side: summed(some) for side, some in answers.items()}
