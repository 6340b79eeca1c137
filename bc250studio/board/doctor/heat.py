"""Checks of heat, fans and the governor (board notes 2.2 to 2.5)."""

from __future__ import annotations

from collections.abc import Iterator

from bc250studio.board import fans, governor, guard
from bc250studio.board.doctor.check import ONLY_BC250, Check, Lines
from bc250studio.board.doctor.machine import Machine
from bc250studio.board.sensors import control_temperature
from bc250studio.board.sysfs import hwmon_named
from bc250studio.errors import JobFailed

GROUP = "Heat"
say = Lines(GROUP)
LEAST_SAFE_MV = 800
_HOTTEST_THROTTLE_C = 90.0


def checks(machine: Machine) -> Iterator[Check]:
    """Sensors first: without them nothing else can be judged."""
    yield temperature(machine)
    yield from doubtful(machine)
    for name, check in (("governor", one_governor), ("throttle", throttle), ("voltage", voltage)):
        yield check(machine) if machine.is_bc250 else say.skip(name, ONLY_BC250)
    yield fan(machine)
    yield changed(machine)
    if machine.ask_clock is not None:
        yield clock(machine)


def temperature(machine: Machine) -> Check:
    """The temperature heat limits go by."""
    heat = control_temperature(machine.readings)
    if heat.good and heat.value is not None:
        extra = f" ({heat.why})" if heat.why else ""
        words = f"{heat.value:.1f} °C from {heat.source}{extra}"
        return say.warn("temperature", words) if extra else say.ok("temperature", words)
    if "hypervisor" in (machine.tree.text("/proc/cpuinfo") or ""):
        return say.skip("temperature", "a virtual machine shows no sensors: heat limits are blind here")
    fix = "sudo modprobe k10temp (from Linux 6.15 on)" if machine.is_bc250 else "sudo modprobe k10temp coretemp"
    return say.warn("temperature", f"heat limits are blind: {heat.why}", fix)


def doubtful(machine: Machine) -> Iterator[Check]:
    """Other readings that cannot be believed, each with its reason; one line when all are fine."""
    wrong = [
        (name, reading)
        for name, reading in machine.readings.items()
        if reading.trust == "implausible" and name not in ("gpu_temp_c", "gpu_memory_clock_mhz")
    ]
    if machine.gpu is None and machine.chip.name == "cpu":
        return
    for name, reading in wrong:
        fix = "bc250studio doctor --clock" if name == "gpu_clock_mhz" else ""
        yield say.warn(f"sensor {name}", f"not believed: {reading.why}", fix)
    if not wrong:
        known = {"gpu_power_w": "power", "gpu_clock_mhz": "clock", "gpu_memory_used_mib": "memory"}
        blind = [name for name in known if not machine.readings[name].good]
        if blind:
            words = ", ".join(known[name] for name in blind)
            yield say.warn("sensors", f"no reading of {words}: {machine.readings[blind[0]].why}")
        else:
            yield say.ok("sensors", f"{', '.join(known.values())} can be read and are plausible")


def one_governor(machine: Machine) -> Check:
    """Without a governor the GPU stays at 1500 MHz; two fight."""
    running = governor.running(machine.tree)
    if not running:
        files = [g.name for g in governor.configured(machine.tree)]
        fix = (
            f"sudo systemctl enable --now {files[0]}"
            if files
            else "https://github.com/filippor/cyan-skillfish-governor"
        )
        return say.warn("governor", "no governor runs: the GPU stays at 1500 MHz", fix)
    if len(running) > 1:
        return say.fail(
            "governor",
            f"two governors run and fight over the clock: {', '.join(running)}",
            f"sudo systemctl disable --now {running[-1]}",
        )
    found = next((g for g in governor.configured(machine.tree) if g.name == running[0]), None)
    if found is not None and not found.readable:
        return say.warn("governor", f"{running[0]} runs, but {found.file} cannot be understood")
    top = f", up to {found.top_clock_mhz} MHz" if found is not None and found.top_clock_mhz else ""
    return say.ok("governor", f"{running[0]} runs{top}")


def throttle(machine: Machine) -> Check:
    """The live threshold; some custom configurations silently remove it."""
    found = governor.throttle(machine.tree)
    if found is None:
        preset = machine.chip.throttle_c
        return say.warn(
            "throttle",
            f"no governor file sets a throttle temperature; {preset:.0f} °C is assumed",
            "set [temperature] throttling = 80 in the governor's file",
        )
    degrees, file = found
    if degrees > _HOTTEST_THROTTLE_C:
        return say.warn(
            "throttle",
            f"{file} throttles at {degrees:.0f} °C only: boards become unstable above 90",
            f"set [temperature] throttling = 85 in {file}",
        )
    if not governor.running(machine.tree):
        return say.warn("throttle", f"{file} says {degrees:.0f} °C, but no governor runs to keep to it")
    return say.ok("throttle", f"the governor throttles at {degrees:.0f} °C ({file})")


def voltage(machine: Machine) -> Check:
    """Below about 800 mV gradients were wrong in 66 of 100 sweeps, 0 of 900 at 800 mV (MXR's notes)."""
    active = governor.running(machine.tree)
    files = sorted(governor.configured(machine.tree), key=lambda g: g.name not in active)
    lowest = next(((g.lowest_voltage_mv, g.file) for g in files if g.lowest_voltage_mv is not None), None)
    if lowest is None:
        return say.ok("voltage", "no governor file lowers the voltage; the built-in points are conservative")
    if lowest[0] < LEAST_SAFE_MV:
        return say.warn(
            "voltage",
            f"{lowest[1]} goes down to {lowest[0]} mV: below {LEAST_SAFE_MV} mV results were silently "
            "wrong in 66 of 100 sweeps",
            f"raise the lowest voltage in {lowest[1]} to {LEAST_SAFE_MV} and restart the governor",
        )
    return say.ok("voltage", f"the lowest voltage is {lowest[0]} mV ({lowest[1]})")


def fan(machine: Machine) -> Check:
    """Read-only fans are fine; both drivers at once are not."""
    drivers = [d for d in ("nct6683", "nct6687") if machine.tree.exists(f"/sys/module/{d}")]
    if len(drivers) > 1:
        return say.fail(
            "fans",
            "nct6683 and nct6687 are both loaded and fight over the chip",
            "sudo modprobe -r nct6683",
        )
    rpm = machine.readings["fan_rpm"]
    outputs = fans.writable(machine.tree)
    if rpm.good and rpm.value is not None:
        can = "full speed while measuring can be asked for" if outputs else "read only"
        return say.ok("fans", f"{rpm.value:.0f} rpm at {rpm.source}, {can}")
    if not machine.is_bc250 or hwmon_named(machine.tree, "nct66"):
        return say.skip("fans", f"{rpm.why}: nothing to read or drive")
    return say.warn(
        "fans",
        "no fan sensor: fine for fans on plain 12 V, else the driver is missing",
        "sudo modprobe nct6683 (reads), or install nct6687d (reads and drives)",
    )


def changed(machine: Machine) -> Check:
    """What a killed guard left changed."""
    left = [job.name for job in guard.leftovers()] if machine.tree.is_machine else []
    if left:
        return say.warn(
            "left-behind",
            f"{', '.join(left)} left fans or clock changed when both it and its guard were killed",
            "bc250studio doctor --put-back",
        )
    return say.ok("left-behind", "no run left fans or clock changed")


def clock(machine: Machine) -> Check:
    """The measured shader clock beside what the driver says."""
    assert machine.ask_clock is not None
    try:
        found = machine.ask_clock()
    except JobFailed as error:
        return say.skip("clock", str(error).rstrip("."))
    said = machine.readings["gpu_clock_mhz"]
    driver = f"; the driver says {said.value:.0f}" if said.value is not None else ""
    spread = f"{found['lowest_mhz']:.0f} to {found['highest_mhz']:.0f}"
    return say.ok("clock", f"the shader clock under load is {found['clock_mhz']:.0f} MHz ({spread}){driver}")
