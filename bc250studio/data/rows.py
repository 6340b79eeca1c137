"""What training gets: token ids with labels, row after row, and what was made of the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Rows:
    """Rows of token ids laid end to end.

    Shapes: ``ids`` int32[N], ``labelled`` bool[N], ``offsets`` int64[rows + 1]. ``labelled[i]`` says that the
    prediction of token i from the tokens before it in its row counts; it is never set on a row's first token.
    """

    ids: NDArray[np.int32]
    labelled: NDArray[np.bool_]
    offsets: NDArray[np.int64]

    @classmethod
    def empty(cls) -> Rows:
        """No rows."""
        return cls(np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(1, np.int64))

    @classmethod
    def of(cls, rows: list[tuple[list[int], list[bool]]]) -> Rows:
        """From lists of (ids, labelled)."""
        lengths = [len(ids) for ids, _ in rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids = np.array([i for row, _ in rows for i in row], np.int32)
        return cls(ids, np.array([f for _, row in rows for f in row], np.bool_), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(ids, labelled) of one row; views, not copies."""
        begin, end = int(self.offsets[index]), int(self.offsets[index + 1])
        return self.ids[begin:end], self.labelled[begin:end]

    def __iter__(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
        return (self.row(index) for index in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row."""
        return np.diff(self.offsets)

    @property
    def labelled_count(self) -> int:
        """Labelled tokens of all rows."""
        return int(np.count_nonzero(self.labelled))

    @property
    def labelled_counts(self) -> NDArray[np.int64]:
        """Labelled tokens of each row."""
        sums = np.concatenate([[0], np.cumsum(self.labelled, dtype=np.int64)])
        return sums[self.offsets[1:]] - sums[self.offsets[:-1]]


@dataclass
class Prepared:
    """A dataset ready to train on.

    ``eval_chats[i]`` are the messages of ``evaluation.row(i)`` (ending with the answer that is measured; empty for
    plain text), ``eval_tools[i]`` the tools offered in it or None. ``digest`` changes with the files' bytes, the
    data settings, the tokenizer or the template. ``report`` is what ``data check --json`` prints. ``thinking`` is the
    value of ``enable_thinking`` the rows were rendered with (None: the template has no such switch); serve with it.
    """

    train: Rows
    evaluation: Rows
    digest: str
    report: dict[str, Any]
    eval_chats: list[list[dict[str, Any]]] = field(default_factory=list)
    eval_tools: list[list[dict[str, Any]] | None] = field(default_factory=list)
    thinking: bool | None = None
