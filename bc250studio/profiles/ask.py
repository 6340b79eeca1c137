"""[ask]: questions put to the base and the tuned model after every run."""

from __future__ import annotations

from pydantic import Field

from bc250studio.profiles.base import Section


class Ask(Section):
    """[ask]"""

    prompts: list[str] = Field(default_factory=list)
    """Questions; empty takes the first prompts of the evaluation rows."""
    file: str | None = None
    """A prompts file with expectations."""
    max_tokens: int = Field(96, ge=1)
    """Longest answer."""
    temperature: float = Field(0.0, ge=0.0)
    """0 is greedy."""
