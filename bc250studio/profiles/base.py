"""What all profile sections share: strict keys, strict types, a description for every field."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One table of a profile. Unknown keys and wrong types are errors, never ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)
