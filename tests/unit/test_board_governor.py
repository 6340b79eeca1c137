"""Governor files in several spellings, the running one, and a cap over a D-Bus that answers like the real one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bc250studio.board import governor
from bc250studio.board.sysfs import Tree
from bc250studio.errors import JobFailed
from tests.trees import Bc250
from tests.trees.plain import put

OBERON = """\
opps:
  - frequency:
    - min: 1000
    - max: 2000
  - voltage:
    - min: 700
    - max: 1000
governor:
  polling_delay_ms: 50
  gfx_temp_soft_lim: 82   # begin
  gfx_temp_hard_lim: 90
"""
OBERON_MAP = "opps:\n  frequency:\n    min: 1000\n    max: 2230\n  voltage:\n    min: 920\n    max: 1129\n"


def only(tree: Path) -> governor.Governor:
    (found,) = governor.configured(Tree(tree))
    return found


def test_the_current_file(tmp_path: Path) -> None:
    found = only(Bc250(tmp_path).write().root)
    assert (found.throttle_c, found.recovery_c, found.lowest_voltage_mv, found.top_clock_mhz) == (80.0, 75.0, 800, 2000)
    assert not found.dbus and found.readable


@pytest.mark.parametrize(
    ("text", "throttle", "voltage"),
    [
        ("", 85.0, None),
        ("[temperature]\nthrottling_temp = 78\n", 78.0, None),
        ("[Temperature]\nThrottling = 90.5\n[[safe_points]]\nFrequency = 1000\nVoltage = 718\n", 90.5, 718),
        ("temperature = 3\n[safe-points]\nvoltage = 'high'\n", 85.0, None),
        ("[temperature]\nthrottling = 8000\n", 85.0, None),
    ],
)
def test_other_spellings(tmp_path: Path, text: str, throttle: float, voltage: int | None) -> None:
    put(tmp_path, "/etc/cyan-skillfish-governor-tt/config.toml", text)
    found = only(tmp_path)
    assert (found.throttle_c, found.lowest_voltage_mv) == (throttle, voltage)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(OBERON, (82.0, 700, 2000)), (OBERON_MAP, (None, 920, 2230)), ("nonsense", (None, None, None))],
)
def test_oberon(tmp_path: Path, text: str, expected: tuple[float | None, int | None, int | None]) -> None:
    put(tmp_path, "/etc/oberon-config.yaml", text)
    found = only(tmp_path)
    assert (found.throttle_c, found.lowest_voltage_mv, found.top_clock_mhz) == expected
    assert found.readable == (text != "nonsense")


def test_the_running_governors_file_wins(tmp_path: Path) -> None:
    Bc250(tmp_path, running=("oberon-governor",)).write()
    put(tmp_path, "/etc/oberon-config.yaml", OBERON)
    tree = Tree(tmp_path)
    assert governor.running(tree) == ["oberon-governor"]
    assert governor.throttle(tree) == (82.0, "/etc/oberon-config.yaml")
    assert governor.throttle(Tree(tmp_path / "none")) is None


@settings(max_examples=50, deadline=None)
@given(
    st.one_of(
        st.text(max_size=400),
        st.from_regex(r"(\[{1,2}[a-z_-]{1,12}\]{1,2}\n([a-z_-]{1,12} = -?[0-9.e]{1,6}\n){0,4}){1,5}"),
    )
)
def test_no_file_content_crashes_the_reader(text: str) -> None:
    for read in (governor._read_toml, governor._read_yaml):
        found = read("g", "f", text)
        assert found.throttle_c is None or 1 <= found.throttle_c <= 115
        assert found.lowest_voltage_mv is None or 300 <= found.lowest_voltage_mv <= 1500


class FakeBus:
    """Answers as busctl does in front of the governor: ``u 2000`` for a number, nothing for a call."""

    def __init__(self, old: bool = False) -> None:
        self.old, self.low, self.high, self.gone = old, 500, 2000, False

    def __call__(self, arguments: Sequence[str]) -> str:
        if self.gone:
            raise JobFailed("The governor refuses over D-Bus: no such service")
        verb, _, place, interface, *rest = arguments
        if verb == "get-property" and not self.old and place.endswith("/Range/Current"):
            return f"u {self.low if rest == ['min'] else self.high}\n"
        if verb == "get-property" and self.old and rest[0].startswith("CurrentRange"):
            return f"u {self.low if rest[0].endswith('Min') else self.high}\n"
        if verb == "call" and not self.old and rest[:2] == ["SetRange", "uu"]:
            self.low, self.high = int(rest[2]), int(rest[3])
            return ""
        if verb == "set-property" and self.old and rest[:2] == ["CurrentRangeMax", "u"]:
            self.high = int(rest[2])
            return ""
        raise JobFailed(f"The governor refuses over D-Bus: Unknown {interface}")


@pytest.mark.parametrize("old", [False, True])
def test_a_cap_is_recorded_set_and_put_back(tmp_path: Path, old: bool) -> None:
    bus, record = FakeBus(old), tmp_path / "governor.json"
    assert governor.cap(1500, record, bus) == (500, 2000)
    assert (bus.low, bus.high) == (500, 1500)
    assert json.loads(record.read_text()) == {"min": 500, "max": 2000}
    assert governor.uncap(record, bus) and bus.high == 2000 and not record.exists()
    assert not governor.uncap(record, bus), "nothing twice"


def test_a_cap_on_a_governor_without_d_bus_changes_nothing(tmp_path: Path) -> None:
    bus, record = FakeBus(), tmp_path / "governor.json"
    bus.gone = True
    with pytest.raises(JobFailed, match="no such service"):
        governor.cap(1500, record, bus)
    assert not record.exists()


def test_a_governor_that_is_gone_at_the_end_keeps_the_record_for_the_next(tmp_path: Path) -> None:
    bus, record = FakeBus(), tmp_path / "governor.json"
    governor.cap(1500, record, bus)
    bus.gone = True
    assert not governor.uncap(record, bus) and record.exists()
    bus.gone = False
    assert governor.uncap(record, bus) and bus.high == 2000


def test_the_real_busctl_on_a_machine_without_the_governor() -> None:
    assert governor.has_performance_interface() is False
