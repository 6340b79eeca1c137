"""[kernels]: whose matrix kernels the runner uses."""

from __future__ import annotations

from typing import Literal

from bc250studio.profiles.base import Section


class Kernels(Section):
    """[kernels]"""

    library: Literal["auto", "stock", "tuned", "tunableop"] = "auto"
    """auto uses tuned kernels only where their proof for this torch, library and chip is on file."""
