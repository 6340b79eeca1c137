"""Sensors against written trees: what each reader believes, what it marks, and where it falls to."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bc250studio.board import gpu, gpu_metrics, presets, sensors
from bc250studio.board.reading import Reading, from_dict, missing
from bc250studio.board.sensors import Sensors, control_temperature
from bc250studio.board.sysfs import Tree
from tests.trees import Bc250, plain
from tests.trees.plain import put


def read(board: Bc250) -> dict[str, Reading]:
    return Sensors.discover(board.root).read()


def test_a_healthy_board_is_believed(tmp_path: Path) -> None:
    found = read(Bc250(tmp_path).write())
    assert found["gpu_temp_c"] == Reading(68.5, "°C", "gpu_metrics v2.2")
    assert found["gpu_power_w"] == Reading(138.0, "W", "amdgpu power1_average")
    assert found["gpu_clock_mhz"] == Reading(2000.0, "MHz", "amdgpu freq1_input")
    assert found["gpu_memory_total_mib"].value == 512 + 14336
    assert found["gpu_memory_used_mib"].value == 200 + 1024
    assert found["mem_available_mib"].value == 13000
    assert found["fan_rpm"].value == 2400 and "Pump Fan" in found["fan_rpm"].source
    assert found["fan_pwm_percent"].value == pytest.approx(92 / 255 * 100)
    assert found["cpu_temp_c"].value == pytest.approx(70.1)
    assert control_temperature(found).value == 68.5


def test_the_memory_clock_at_rest_is_not_sold_as_the_memory_clock(tmp_path: Path) -> None:
    clock = read(Bc250(tmp_path).write())["gpu_memory_clock_mhz"]
    assert clock.value == 450 and not clock.good and "fabric" in clock.why


def test_55_mhz_of_an_8_core_board_is_marked_and_the_temperature_stays(tmp_path: Path) -> None:
    found = read(Bc250(tmp_path, clock_mhz=55, power_w=140.0, temp_c=79.3).write())
    clock = found["gpu_clock_mhz"]
    assert clock.value == 55 and clock.trust == "implausible" and "140 W" in clock.why and "8 cores" in clock.why
    assert found["gpu_temp_c"].good and found["gpu_temp_c"].value == 79.3


def test_0_degrees_and_434_watts_are_neither_cool_nor_believed(tmp_path: Path) -> None:
    found = read(Bc250(tmp_path, temp_c=0.0, power_w=434.0, tctl_c=81.2).write())
    assert found["gpu_power_w"].trust == "implausible" and found["gpu_power_w"].value == 434.0
    heat = found["gpu_temp_c"]
    assert heat.good and heat.value == pytest.approx(81.2) and heat.source == "k10temp Tctl"
    assert "stands in" in heat.why and "0 °C" in heat.why


def test_0_degrees_without_a_cpu_sensor_is_marked_not_taken(tmp_path: Path) -> None:
    heat = read(Bc250(tmp_path, temp_c=0.0, tctl_c=None).write())["gpu_temp_c"]
    assert heat.trust == "implausible" and not heat.good


def test_two_sources_that_disagree_count_as_the_hotter(tmp_path: Path) -> None:
    heat = read(Bc250(tmp_path, temp_c=41.0, edge_c=86.0).write())["gpu_temp_c"]
    assert heat.value == 86.0 and "41 °C" in heat.why


def test_hwmon_renumbered_in_mid_run(tmp_path: Path) -> None:
    board = Bc250(tmp_path).write()
    watching = Sensors.discover(tmp_path)
    assert watching.read()["gpu_power_w"].value == 138.0
    board.hwmon, board.power_w, board.temp_c, board.tctl_c, board.nct = 7, 141.0, 77.25, 78.0, 2
    board.write()
    found = watching.read()
    assert found["gpu_power_w"].value == 141.0
    assert found["gpu_temp_c"].value == 77.25
    assert found["cpu_temp_c"].value == 78.0
    assert found["fan_rpm"].value == 2400


def test_a_vanishing_sensor_falls_to_the_next_and_none_left_is_missing(tmp_path: Path) -> None:
    board = Bc250(tmp_path).write()
    watching = Sensors.discover(tmp_path)
    (board.device / "gpu_metrics").unlink()
    assert watching.read()["gpu_temp_c"].source == "amdgpu edge"
    (board.gpu_hwmon / "temp1_input").unlink()
    assert watching.read()["gpu_temp_c"].source == "k10temp Tctl"
    (next(tmp_path.glob("sys/devices/pci0000:00/0000:00:18.3/hwmon/*")) / "temp1_input").unlink()
    heat = watching.read()["gpu_temp_c"]
    assert heat.trust == "missing" and heat.value is None and heat.why


def test_power1_input_serves_where_the_average_is_gone(tmp_path: Path) -> None:
    board = Bc250(tmp_path).write()
    (board.gpu_hwmon / "power1_average").unlink()
    put(board.gpu_hwmon, "power1_input", 99_000_000)
    assert Sensors.discover(tmp_path).read()["gpu_power_w"] == Reading(99.0, "W", "amdgpu power1_input")


def test_512_mib_carve_out_with_14_gib_gtt_and_a_lower_live_page_limit(tmp_path: Path) -> None:
    board = Bc250(tmp_path, vram_mib=512, gtt_mib=14336, page_limit_mib=14336).write()
    assert read(board)["gpu_memory_total_mib"].value == 14848
    board.page_limit_mib = 11776
    board.write()
    total = read(board)["gpu_memory_total_mib"]
    assert total.value == 512 + 11776 and "pages_limit" in total.source


def test_no_fan_output(tmp_path: Path) -> None:
    found = read(Bc250(tmp_path, pwm=False, nct_driver="nct6683").write())
    assert found["fan_rpm"].value == 2400 and "fan_pwm_percent" not in found
    found = read(Bc250(tmp_path / "b", nct=None).write())
    assert found["fan_rpm"].trust == "missing" and "no fan sensor" in found["fan_rpm"].why


def test_power_that_stands_still_while_the_chip_warms_is_doubted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(sensors.time, "monotonic", lambda: clock[0])
    board = Bc250(tmp_path, power_w=38.0, temp_c=50.0).write()
    watching = Sensors.discover(tmp_path)
    assert watching.read()["gpu_power_w"].good
    clock[0] += 31
    assert watching.read()["gpu_power_w"].good, "an idle chip may stand still"
    board.temp_c = 55.0
    board.write()
    clock[0] += 1
    frozen = watching.read()["gpu_power_w"]
    assert frozen.trust == "implausible" and "stood" in frozen.why
    board.power_w = 39.0
    board.write()
    assert watching.read()["gpu_power_w"].good


def test_a_machine_without_a_gpu_says_so(tmp_path: Path) -> None:
    found = Sensors.discover(plain(tmp_path)).read()
    assert set(sensors.ALWAYS) <= set(found)
    assert found["gpu_temp_c"] == missing("°C", "no GPU")
    assert found["mem_available_mib"].value == 6000
    assert control_temperature(found).trust == "missing"


def test_cpu_load_from_proc_stat(tmp_path: Path) -> None:
    watching = Sensors.discover(plain(tmp_path))
    put(tmp_path, "/proc/stat", "cpu  175 0 75 1100 10 0 5 0 0 0")
    assert watching.read()["cpu_percent"].value == pytest.approx(50.0)


def test_this_machine_can_be_read() -> None:
    found = Sensors.discover().read()
    assert found["mem_available_mib"].good and found["cpu_percent"].good


def test_the_gpu_is_known_by_its_ids_not_its_number(tmp_path: Path) -> None:
    board = Bc250(tmp_path, compute_units=24).write()
    found = gpu.find(Tree(tmp_path))[0]
    assert (found.pci_id, found.gfx, found.driver, found.address) == ("1002:13fe", "gfx1013", "amdgpu", "0000:01:00.0")
    assert gpu.compute_units(Tree(tmp_path), found) == 24
    chip = presets.detect(tmp_path)
    assert (chip.name, chip.gfx, chip.apu) == ("gfx1013", "gfx1013", True)
    put(board.device, "device", "0x1586")
    put(
        tmp_path,
        "/sys/class/kfd/kfd/topology/nodes/1/properties",
        "simd_count 80\ngfx_target_version 110501\ndevice_id 5510",
    )
    assert presets.detect(tmp_path).name == "rdna3.5"
    put(board.device, "device", "0x0001")
    unknown = presets.detect(tmp_path)
    assert unknown.name == "cpu" and "1002:0001" in unknown.title


def test_metrics_of_unknown_layouts_are_refused_with_the_reason(tmp_path: Path) -> None:
    table = bytearray(Bc250(tmp_path).metrics())
    table[2:4] = bytes((3, 0))
    found, why = gpu_metrics.parse(bytes(table))
    assert found is None and "v3.0" in why
    assert gpu_metrics.parse(bytes(table[:3]))[0] is None
    whole = Bc250(tmp_path).metrics()
    assert gpu_metrics.parse(whole[:100]) == (None, "gpu_metrics v2.2 says 128 bytes but has 100")
    assert gpu_metrics.parse(struct.pack("<HBB", 40, 2, 2) + b"\0" * 36)[0] is None


def test_power_is_not_taken_from_the_field_that_overflows(tmp_path: Path) -> None:
    board = Bc250(tmp_path, power_w=140.0)
    assert struct.unpack_from("<H", board.metrics(), 40)[0] == 8928, "the driver's own truncation"
    assert read(board.write())["gpu_power_w"].value == 140.0


ANY_FILE = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\n", b"-1", b"0x", b"nan", b"1e9", b"9" * 400, b"\xff" * 128, "٣".encode(), b"\0\0"]),
    st.integers(-(1 << 70), 1 << 70).map(lambda n: str(n).encode()),
    st.builds(lambda head, rest: struct.pack("<HBB", *head) + rest,
              st.tuples(st.integers(0, 65535), st.integers(0, 3), st.integers(0, 5)), st.binary(max_size=160)),
)  # fmt: skip


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_of_any_file_crashes_a_reader(tmp_path: Path, data: st.DataObject) -> None:
    root = tmp_path / "tree"
    if not root.exists():
        Bc250(root).write()
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    broken = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=6, unique=True))
    before = {path: path.read_bytes() for path in broken}
    try:
        for path in broken:
            path.write_bytes(data.draw(ANY_FILE))
        watching = Sensors.discover(root)
        for _ in range(2):
            found = watching.read()
        assert set(sensors.ALWAYS) <= set(found)
        for reading in found.values():
            assert from_dict(reading.as_dict()) == reading
            assert reading.trust == "missing" or reading.value is not None
        assert not found["gpu_temp_c"].good or 0 < (found["gpu_temp_c"].value or 0) < 115
        presets.detect(root)
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def test_folders_and_fifos_in_place_of_files_do_not_hang(tmp_path: Path) -> None:
    import os

    board = Bc250(tmp_path).write()
    for path in (board.device / "gpu_metrics", board.gpu_hwmon / "power1_average"):
        path.unlink()
        os.mkfifo(path)
    (board.gpu_hwmon / "freq1_input").unlink()
    (board.gpu_hwmon / "freq1_input").mkdir()
    found = read(board)
    assert found["gpu_temp_c"].source == "amdgpu edge" and not found["gpu_power_w"].good
