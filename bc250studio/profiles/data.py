"""[data]: the rows, and what is learnt from them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bc250studio.profiles.base import Section

Format = Literal["auto", "messages", "alpaca", "sharegpt", "prompt_completion", "question_answer", "text", "preference"]


class Data(Section):
    """[data]"""

    path: str = "assets:demo.jsonl"
    """A file, a folder, a hub dataset id (`hub:owner/name`), or `assets:NAME` for one that ships."""
    format: Format = "auto"
    """What the rows look like; auto looks at many rows and says what it found."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column mapping by hand: our name (prompt, completion, system, messages, text, tools) -> the file's name."""
    fill: dict[str, str] = Field(default_factory=dict)
    """Texts for `{{name}}` placeholders: name -> text. Rows with an unfilled one are left out."""
    use_chosen: bool = False
    """Train on the `chosen` answers of a preference file as if they were plain chats."""
    eval_path: str | None = None
    """A separate file for evaluation; empty splits it off `path`."""
    eval_fraction: float = Field(0.1, ge=0.0, lt=1.0)
    """Share of the rows kept away from training and used to measure the loss."""
    train_on: Literal["assistant", "last", "all"] = "assistant"
    """Which tokens are learnt: every assistant turn, the last one only, or all text."""
    max_length: int = Field(1024, ge=8)
    """Longest row in tokens."""
    overlong: Literal["cut", "drop"] = "cut"
    """What happens to longer rows."""
    system: str | None = None
    """A system message for rows that have none; empty leaves it to the model's own template."""
    thinking: bool | None = None
    """`enable_thinking` for templates that have it; empty leaves it to the template. Serving uses the same."""
