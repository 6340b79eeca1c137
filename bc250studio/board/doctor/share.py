"""``doctor --share``: what owners can send, so that numbers nobody here can measure become known.

Built from a list of facts that are allowed in, not by removing what is forbidden: no names, serials, addresses
or paths can slip through. Bench records keep numbers and a few named words; every other text is dropped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import bc250studio
from bc250studio.board import governor, gpu
from bc250studio.board.doctor.check import Check
from bc250studio.board.doctor.device import version
from bc250studio.board.doctor.machine import Machine
from bc250studio.board.doctor.serving import mesa_version

SCHEMA = 1
_WORD = re.compile(r"^[A-Za-z0-9][A-Za-z0-9 ._+×*=:;%°()<>-]{0,59}$")
_WORDS = """kind name dtype device gfx precision quantisation attention recompute graph layout counting chip torch test
what trust unit verdict remark against baseline layer_kernels processor backend"""
_KEYS_WITH_WORDS = frozenset(_WORDS.split())
_NEVER = re.compile(r"path|file|folder|dir|user|host|serial|uuid|url|addr|key|token_|home|prompt|text|python$|system$")
_BENCH_PARTS = ("kind", "regime", "results", "machine")
_LONGEST_LIST = 200


def document(machine: Machine, checks: Iterable[Check], benches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole document."""
    return {
        "schema": SCHEMA,
        "product": f"bc250studio {bc250studio.__version__}",
        "month": time.strftime("%Y-%m", time.gmtime()),
        "board": _board(machine),
        "software": _software(machine),
        "readings": {
            name: {"value": reading.value, "unit": reading.unit, "trust": reading.trust}
            for name, reading in machine.readings.items()
        },
        "checks": {check.name: check.verdict for check in checks},
        # A record's own name and model may be of the owner's making, so only these parts are looked at.
        "benches": [numbers({part: record.get(part) for part in _BENCH_PARTS}) for record in benches],
    }


def _board(machine: Machine) -> dict[str, Any]:
    found = machine.gpu
    settings = [
        {
            "governor": g.name,
            "throttle_c": g.throttle_c,
            "lowest_voltage_mv": g.lowest_voltage_mv,
            "top_clock_mhz": g.top_clock_mhz,
            "dbus": g.dbus,
        }
        for g in governor.configured(machine.tree)
    ]
    parameters = "/sys/module/amdgpu/parameters"
    return {
        "preset": machine.chip.name,
        "gfx": machine.chip.gfx,
        "pci_id": found.pci_id if found else "",
        "compute_units": gpu.compute_units(machine.tree, found) if found else None,
        "memory_mib": {name: size >> 20 for name, size in machine.memory_bytes.items()},
        "driver_parameters": {
            name: machine.tree.number(f"{parameters}/{name}")
            for name in machine.tree.names(parameters)
            if re.fullmatch(r"bc250_[a-z0-9_]{1,40}|sched_policy", name)
        },
        "governors": settings,
        "governors_running": governor.running(machine.tree),
    }


def _software(machine: Machine) -> dict[str, Any]:
    kernel, mesa = version(machine.tree.text("/proc/sys/kernel/osrelease")), mesa_version(machine)
    facts: dict[str, Any] = {
        "linux": ".".join(map(str, kernel)) if kernel else None,
        "mesa": mesa[2] if mesa else None,
        "llama_server": _word(machine.server.version),
        "vulkan_devices": [_word(device) for device in machine.server.devices],
    }
    if not machine.quick:
        facts["torch"] = {
            key: _word(machine.torch.get(key)) for key in ("version", "hip", "cuda", "device", "arch", "python")
        }
        facts["torch"]["arch_list"] = [_word(arch) for arch in machine.torch.get("arch_list") or ()]
        if isinstance(machine.products, dict):
            facts["products"] = numbers(machine.products.get("products"))
    return facts


def _word(value: object) -> str | None:
    """A short plain word or version; anything that could be a path or a name of a person's making is dropped."""
    text = str(value) if isinstance(value, (str, int, float)) else ""
    return text if _WORD.match(text) and "/" not in text else None


def numbers(value: Any, key: str = "", depth: int = 0) -> Any:
    """A record with its numbers, truth values and the few allowed words; None where something was dropped."""
    if depth > 8 or isinstance(value, (bool, int, float)) or value is None:
        return value if depth <= 8 else None
    if isinstance(value, Mapping):
        kept = {}
        for name, inner in value.items():
            plain = _word(name)
            if plain is not None and not _NEVER.search(plain.lower()):
                kept[plain] = numbers(inner, plain, depth + 1)
        return {name: inner for name, inner in kept.items() if inner is not None}
    if isinstance(value, (list, tuple)):
        return [item for item in (numbers(v, key, depth + 1) for v in value[:_LONGEST_LIST]) if item is not None]
    return _word(value) if key in _KEYS_WITH_WORDS else None
