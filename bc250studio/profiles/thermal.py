"""[thermal]: heat and memory limits while training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bc250studio.profiles.base import Section


class Thermal(Section):
    """[thermal]"""

    start_below_c: float | None = None
    """Wait until the chip is cooler than this before the first step; empty starts at once."""
    pause_at_c: float | None = None
    """Pause between steps at this temperature; empty means min(throttle + 6, 90)."""
    resume_below_c: float | None = None
    """Go on below this temperature; empty means pause - 12."""
    fan_while_measuring: Literal["off", "full"] = "off"
    """Fans to full speed during a run or bench, put back afterwards."""
    top_clock_mhz: int | None = Field(None, ge=300, le=3000)
    """Ask the board's governor for a lower top clock during the run, put back afterwards; empty leaves it alone."""
    min_available_mib: int = Field(400, ge=0)
    """Pause with a checkpoint when the machine has less memory left than this."""
