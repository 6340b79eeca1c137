"""Data: read any common format, account for every row, render it as it will be served, and mask what is not learnt.

``prepare(profile, source)`` is the whole way; ``check`` tells it without keeping anything; ``look`` recognises only.
"""

from bc250studio.data.check import Checked, check, look
from bc250studio.data.prepare import prepare
from bc250studio.data.rows import Prepared, Rows

__all__ = ["Checked", "Prepared", "Rows", "check", "look", "prepare"]
