"""Is this machine fit, and what would fix it: checks by group, each pass, warn, fail or skip with why and a command."""

from bc250studio.board.doctor.check import Check
from bc250studio.board.doctor.examination import count, examine
from bc250studio.board.doctor.machine import Machine

__all__ = ["Check", "Machine", "count", "examine"]
