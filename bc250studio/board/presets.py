"""Which chip this is, what suits it, and the only place where a runner's environment is made.

The rows are data (preset_table.py). ``python -m bc250studio.board.presets`` prints the table of
docs/board.md; ``--write FILE`` puts it between that page's marks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bc250studio import paths
from bc250studio.board import gpu
from bc250studio.board.nvidia import Nvml
from bc250studio.board.preset_table import PRESETS, Preset
from bc250studio.board.sysfs import Tree
from bc250studio.errors import BadInput
from bc250studio.profiles import Profile

OPEN, CLOSE = "<!-- presets: begin -->", "<!-- presets: end -->"


@dataclass(frozen=True)
class Chip:
    """The chip a run would use. ``name`` is its preset's; ``gfx`` AMD's instruction set; ``title`` for people."""

    name: str
    title: str
    gfx: str = ""
    pci_id: str = ""
    preset: Preset = field(default=PRESETS[-1], repr=False)

    @property
    def throttle_c(self) -> float:
        """Where this family begins to throttle when no governor says otherwise."""
        return self.preset.throttle_c

    @property
    def apu(self) -> bool:
        """Whether CPU and GPU share memory and heat."""
        return self.preset.apu


def preset(name: str) -> Preset:
    """The row of that name.

    Raises:
        BadInput: there is none.
    """
    for row in PRESETS:
        if row.name == name:
            return row
    raise BadInput(f"No chip preset is called {name!r}; there are {', '.join(row.name for row in PRESETS)}.")


def of(name: str, title: str = "", gfx: str = "", pci_id: str = "") -> Chip:
    """A chip of a preset by name."""
    row = preset(name)
    return Chip(row.name, title or row.title, gfx or (row.gfx[0] if row.gfx else ""), pci_id, row)


def detect(root: str | Path = "/") -> Chip:
    """The chip of this machine (or of the tree at ``root``), by PCI id and the kernel's topology; no torch.

    An AMD chip no row covers goes by the CPU row, with its name kept, so that nothing is assumed about it.
    """
    tree = Tree(root)
    for found in gpu.find(tree):
        if found.is_nvidia:
            nvml = Nvml.open()[0] if tree.is_machine else None
            return of("nvidia", nvml.name() if nvml else "NVIDIA GPU", pci_id=found.pci_id)
        for row in PRESETS:
            if found.gfx and found.gfx in row.gfx:
                return of(row.name, row.title, found.gfx, found.pci_id)
        cpu = preset("cpu")
        return Chip("cpu", f"AMD GPU {found.pci_id} without a preset", found.gfx, found.pci_id, cpu)
    if tree.is_machine:
        nvml = Nvml.open()[0]
        if nvml is not None:
            return of("nvidia", nvml.name())
    return of("cpu")


def environment_for(profile: Profile, chip: Chip, library: str | Path | None = None) -> dict[str, str]:
    """Variables the runner of ``profile`` gets on ``chip``; pure.

    ``library`` is the kernel directory rocBLAS shall load (its documented switch ROCBLAS_TENSILE_LIBPATH),
    as chosen by the kernels part; None leaves rocBLAS its own.
    """
    if profile.model.device == "cpu":
        return {}
    variables = {variable.name: variable.value for variable in chip.preset.environment}
    if library is not None:
        variables["ROCBLAS_TENSILE_LIBPATH"] = str(library)
    return variables


def runner_environment(
    profile: Profile, chip: Chip, inherited: Mapping[str, str], library: str | Path | None = None
) -> tuple[dict[str, str], list[str]]:
    """The whole environment of the runner's process, and a sentence for each thing that differs from what
    the user had set. Pure. What a chip forbids is taken out; an override is never put in.
    """
    environment, notes = dict(inherited), []
    if profile.model.device != "cpu":
        for name, why in chip.preset.forbidden.items():
            if name in environment:
                notes.append(f"{name}={environment.pop(name)} is taken out for the runner: {why}.")
    required = {v.name: v for v in chip.preset.environment}
    for name, value in environment_for(profile, chip, library).items():
        before = environment.get(name)
        variable = required.get(name)
        if before is not None and before != value:
            if variable is not None and not variable.required:
                notes.append(f"{name}={before} is kept as you set it; the preset of this chip has {value}.")
                continue
            why = variable.why if variable else "the profile's kernel library"
            notes.append(f"{name}={value} replaces {before} for the runner: {why}.")
        environment[name] = value
    return environment, notes


def table() -> str:
    """The presets as a Markdown table."""
    head = ["chip", "precision", "attention", "environment of the runner", "serve with", "llama.cpp needs"]
    head += ["throttles at", "known refusals", "measured by us", "source"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in PRESETS:
        variables = [f"`{v.name}={v.value}`" for v in row.environment] + [f"no `{name}`" for name in row.forbidden]
        cells = (
            f"{row.title} ({', '.join(row.gfx)})" if row.gfx else row.title,
            row.precision,
            row.attention,
            ", ".join(variables) or "-",
            row.serve,
            ", ".join(row.capabilities) or "-",
            f"{row.throttle_c:.0f} °C",
            "; ".join(row.refusals) or "-",
            "yes" if row.measured else "no",
            f"<{row.source}>",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """``page`` with the table between its two marks replaced.

    Raises:
        BadInput: the marks are missing.
    """
    before, opened, rest = page.partition(OPEN)
    _, closed, after = rest.partition(CLOSE)
    if not opened or not closed:
        raise BadInput(f"The page has no {OPEN} ... {CLOSE} for the table of presets.")
    return f"{before}{OPEN}\n{table()}\n{CLOSE}{after}"


def main(arguments: list[str]) -> int:
    """Print the table, or write it into a page."""
    if arguments[:1] == ["--write"] and len(arguments) == 2:
        page = Path(arguments[1])
        paths.write_atomic(page, with_table(page.read_text("utf-8")), mode=0o644)
    else:
        print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
