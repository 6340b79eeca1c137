"""Checks of what trains: environment, torch, rocBLAS, tuned kernels, matrix products (board notes 2.9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bc250studio.board.doctor.check import Check, Lines
from bc250studio.board.doctor.machine import Machine
from bc250studio.errors import clean

GROUP = "Training"
say = Lines(GROUP)
_SLOWING = ("HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY", "CUDA_LAUNCH_BLOCKING")


def checks(machine: Machine) -> Iterator[Check]:
    """Environment first, then what starts torch."""
    yield override(machine)
    yield sdma(machine)
    yield slowing(machine)
    if machine.quick:
        for name in ("torch", "rocblas", "products"):
            yield say.skip(name, "left out by --quick")
    else:
        yield torch(machine)
        yield rocblas(machine)
        yield products(machine)
    yield tuned(machine)


def override(machine: Machine) -> Check:
    """HSA_OVERRIDE_GFX_VERSION only swaps the code object; it adds no instruction."""
    name = "hsa-override"
    value = machine.login.variables.get("HSA_OVERRIDE_GFX_VERSION")
    if value is None:
        return say.ok(name, "HSA_OVERRIDE_GFX_VERSION is not set")
    why = machine.chip.preset.forbidden.get("HSA_OVERRIDE_GFX_VERSION")
    shown = f"HSA_OVERRIDE_GFX_VERSION={clean(value, 20)}"
    if why is not None:
        return say.fail(
            name,
            f"{shown} is set: {why}",
            "unset HSA_OVERRIDE_GFX_VERSION (and take it out of ~/.profile); our runner drops it",
        )
    if machine.gpu is None or not machine.gpu.is_amd:
        return say.ok(name, f"{shown} is set, without effect here")
    return say.warn(
        name,
        f"{shown} makes ROCm load another chip's kernels; it is kept as you set it",
        "unset it when torch has kernels for this chip",
    )


def sdma(machine: Machine) -> Check:
    """Copies over 16,384 bytes never finish on a BC-250 with the SDMA engine on."""
    wanted = next((v for v in machine.chip.preset.environment if v.name == "HSA_ENABLE_SDMA"), None)
    if wanted is None:
        return say.skip("sdma", "only on a BC-250")
    mine = machine.login.variables.get("HSA_ENABLE_SDMA")
    if mine in (None, wanted.value):
        own = "set in this login" if mine else "our runner sets it; other programs need it in their environment"
        return say.ok("sdma", f"HSA_ENABLE_SDMA={wanted.value} ({own})")
    return say.warn(
        "sdma",
        f"HSA_ENABLE_SDMA={clean(mine, 20)} here: {wanted.why}; our runner replaces it",
        f"export HSA_ENABLE_SDMA={wanted.value}",
    )


def slowing(machine: Machine) -> Check:
    """Debug variables that serialise launches slow every step and repair nothing."""
    found = [name for name in _SLOWING if machine.login.variables.get(name, "0") not in ("0", "")]
    if found:
        return say.warn(
            "serialise",
            f"{', '.join(found)} slows every launch and repairs nothing",
            f"unset {' '.join(found)}",
        )
    return say.ok("serialise", "no variable serialises the launches")


def torch(machine: Machine) -> Check:
    """A torch that really has this chip and launches a kernel; is_available() alone says True on a wrong build."""
    facts, found = machine.torch, machine.gpu
    if "error" in facts:
        return say.fail(
            "torch",
            f"{machine.python}: {clean(facts['error'], 160)}",
            "pip install 'bc250studio[train]', or: bc250studio settings runtime.python PATH-OF-A-PYTHON-WITH-TORCH",
        )
    builds = [f"{name} {facts[key]}" for key, name in (("hip", "ROCm"), ("cuda", "CUDA")) if facts.get(key)]
    build = builds[0] if builds else "CPU only"
    name = f"torch {facts.get('version')} ({build})"
    if found is None and machine.chip.name == "cpu":
        return _launched(facts, name, "the CPU")
    if not facts.get("available"):
        what = "AMD" if found is not None and found.is_amd else "NVIDIA"
        fix = "bc250studio settings runtime.python PATH-OF-A-PYTHON-WHOSE-TORCH-SEES-THE-GPU"
        if facts.get("hip") is None and facts.get("cuda") is None:
            return say.warn("torch", f"{name} cannot use the {what} GPU: runs train on the CPU", fix)
        return say.fail("torch", f"{name} sees no GPU although the kernel does", fix)
    arch, listed = machine.chip.gfx, [str(a).partition(":")[0] for a in facts.get("arch_list") or ()]
    if facts.get("hip") and arch and arch not in listed:
        return say.fail(
            "torch",
            f"{name} has no kernels for {arch} (it has {', '.join(listed) or 'none'})",
            f"build torch with PYTORCH_ROCM_ARCH={arch}" if machine.is_bc250 else f"install a torch built for {arch}",
        )
    return _launched(facts, name, str(facts.get("device") or "the GPU"))


def _launched(facts: dict[str, Any], name: str, where: str) -> Check:
    if not facts.get("launched"):
        return say.fail(
            "torch",
            f"{name} does not compute on {clean(where, 60)}: {clean(facts.get('launch_error'), 160)}",
            "install a torch that was built for this chip",
        )
    if not facts.get("right", True):
        return say.fail(
            "torch",
            f"{name} computes a wrong product on {clean(where, 60)}",
            "bc250studio kernels prove",
        )
    return say.ok("torch", f"{name} computes on {clean(where, 60)}")


def rocblas(machine: Machine) -> Check:
    """Which rocBLAS is mapped after a product, and whether its folder has this chip's kernels as real files."""
    facts = machine.torch
    if not facts.get("hip"):
        return say.skip("rocblas", "no ROCm torch")
    mapped = [str(path) for path in facts.get("mapped") or () if "librocblas" in str(path)]
    if not mapped:
        return say.warn("rocblas", "no rocBLAS was mapped by a product: torch takes another library")
    if len(mapped) > 1:
        return say.fail("rocblas", f"two rocBLAS are mapped: {', '.join(mapped)}", "keep one of them on the path")
    override = machine.login.variables.get("ROCBLAS_TENSILE_LIBPATH") or machine.library
    folder = Path(override) if override else Path(mapped[0]).parent / "rocblas/library"
    tree, arch = machine.tree, machine.chip.gfx
    names = [name for name in tree.names(folder) if arch and arch in name]
    if not names:
        return Check(
            "rocblas",
            GROUP,
            "fail" if machine.is_bc250 else "warn",
            f"{mapped[0]} has no {arch or 'known'} kernels in {folder}",
            f"build rocBLAS for {arch} (rocm-libraries PR 8838)" if machine.is_bc250 else "",
        )
    links = [name for name in names if tree.at(folder / name).is_symlink()]
    if links:
        return say.fail(
            "rocblas",
            f"{links[0]} in {folder} is a link to another chip's kernels, which abort",
            f"build rocBLAS for {arch}; library and kernels must be of one build",
        )
    return say.ok("rocblas", f"{mapped[0]} with {arch} kernels ({len(names)} files)")


def tuned(machine: Machine) -> Check:
    """Whether tuned kernels are in use."""
    user = machine.login.variables.get("ROCBLAS_TENSILE_LIBPATH")
    if machine.library:
        return say.ok("tuned", f"tuned kernels are in use: {machine.library}")
    if user:
        return say.warn(
            "tuned",
            f"ROCBLAS_TENSILE_LIBPATH={clean(user, 120)} is set by you, not proved by us",
            "bc250studio kernels adopt PATH, then kernels prove",
        )
    if machine.is_bc250:
        why = machine.library_why or "stock kernels: up to twice as slow in training"
        return say.warn("tuned", why, "bc250studio kernels status")
    return say.skip("tuned", machine.library_why or "tuned kernels are made for gfx1013")


def products(machine: Machine) -> Check:
    """Each number type in each layout against float64 on this device."""
    record = machine.products
    if isinstance(record, str):
        return say.skip("products", clean(record, 200))
    groups = record["products"].get("groups", {})
    failed = [name for name, group in groups.items() if group.get("failed")]
    restless = [name for name, group in groups.items() if not group.get("repeatable", True)]
    where = clean(record.get("name") or machine.torch.get("device") or record.get("device"), 60)
    if failed:
        return say.fail(
            "products",
            f"wrong against float64 on {where}: {', '.join(failed)} (of {len(groups)} types × layouts)",
            'bc250studio kernels prove; until then set kernels.library = "stock" or model.precision = "fp32"',
        )
    if restless:
        return say.warn("products", f"right, but not the same twice on {where}: {', '.join(restless)}")
    count = record["products"].get("cases", 0)
    return say.ok("products", f"{count} products of {len(groups)} types × layouts agree with float64 on {where}")
