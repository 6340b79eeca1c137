"""Where in the file each training row comes from: asked for only when a row must be named; nothing is kept for it."""

from __future__ import annotations

from bc250studio.data.files import locate
from bc250studio.data.mask import Masker
from bc250studio.data.prepare import held_of, settle
from bc250studio.data.seen import digest64
from bc250studio.data.split import choose
from bc250studio.data.thinking import settle_thinking
from bc250studio.data.walk import Tally, walk
from bc250studio.models.find import ModelSource
from bc250studio.models.tokenizer import load_tokenizer
from bc250studio.profiles import Profile


def places(profile: Profile, source: ModelSource) -> list[str]:
    """``line 17`` and the like for every row of ``prepare(profile, source).train``, in its order.

    Raises:
        BadInput: the data cannot be read any more.
    """
    data = profile.data
    dataset = locate(data.path)
    held = locate(data.eval_path) if data.eval_path else held_of(dataset)
    tokenizer = load_tokenizer(source)
    recognition = settle(dataset, data.format, data.columns, data.use_chosen)
    thinking = settle_thinking(data.thinking, tokenizer, dataset.rows(), recognition, data.use_chosen)
    found, keys = [], []
    for learnt in walk(dataset, recognition, data, Masker(tokenizer, data.train_on, thinking), Tally()):
        found.append(learnt.raw.where)
        keys.append(digest64(learnt.chat.prompt_key))
    if held is not None:
        return found
    away = choose(keys, data.eval_fraction, profile.train.seed)
    return [place for place, held_out in zip(found, away, strict=True) if not held_out]
