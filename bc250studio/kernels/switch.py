"""Which kernel library a run loads, and why: the profile's wish, the machine's choice, and the proof on file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bc250studio.board import presets
from bc250studio.errors import BadInput, ProofFailed
from bc250studio.jobs.folder import read_json
from bc250studio.kernels import store
from bc250studio.kernels.runtime import Runner, runner
from bc250studio.profiles import Profile

VARIABLE = "ROCBLAS_TENSILE_LIBPATH"


@dataclass(frozen=True)
class Decision:
    """``library``: the folder for ROCBLAS_TENSILE_LIBPATH, None for rocBLAS's own. ``why``: one sentence.

    ``extra``: TunableOp's switches where its file is used.
    """

    library: Path | None
    why: str
    name: str | None = None
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What the runner's process gets; the folder replaces rocBLAS's own for that process only."""
        return {**self.extra, VARIABLE: str(self.library)} if self.library else dict(self.extra)


def decide(profile: Profile, chip: presets.Chip, found: Runner | None = None) -> Decision:
    """Which library the runner of ``profile`` loads on ``chip``.

    ``auto`` takes the tuned one only where a passed proof for this torch, rocBLAS, library and chip is on file.
    ``tuned`` insists.

    Raises:
        BadInput: ``tuned`` is asked for and there is no library, or none for this machine.
        ProofFailed: ``tuned`` is asked for and its proof is missing or failed.
    """
    wish = profile.kernels.library
    use, name = store.choice()
    wanted = use if wish == "auto" else wish
    if wanted == "stock":
        return Decision(None, "rocBLAS's own kernels, as chosen.")
    if wanted == "tunableop":
        return _tunableop(found or runner())
    if profile.model.device == "cpu" or not chip.gfx:
        if wanted == "tuned":
            raise BadInput(
                "Tuned kernels are for AMD GPUs with rocBLAS, and this run has none; "
                "set kernels.library to auto or stock."
            )
        return Decision(None, "this device has no rocBLAS to switch.")
    if wanted == "auto" and not store.libraries():
        return Decision(None, "rocBLAS's own kernels: no tuned library has been built or adopted yet.")
    stored = store.library(name)
    verdict, reason = proven(stored, chip.gfx, found or runner())
    if verdict:
        return Decision(stored.folder, f"tuned kernels {stored.name}: {reason}.", stored.name)
    if wanted == "tuned":
        raise ProofFailed(
            f"The tuned library {stored.name} is not used: {reason}; "
            f"run: bc250studio kernels prove --library {stored.name}"
        )
    return Decision(None, f"rocBLAS's own kernels: {reason}.", stored.name)


def _tunableop(found: Runner) -> Decision:
    from bc250studio.kernels import tunableop

    extra = tunableop.proven(found.torch)
    if not extra:
        raise ProofFailed(
            f"No proven TunableOp file is there for torch {found.torch}; "
            "make one with: bc250studio kernels tune PROFILE --engine tunableop"
        )
    return Decision(None, "the library's own kernels, chosen per size by TunableOp's proven file.", extra=extra)


def proven(stored: store.Stored, gfx: str, found: Runner) -> tuple[bool, str]:
    """Whether a passed proof of ``stored`` is on file for this machine, and the reason in words."""
    arch = str(stored.about.get("architecture") or "")
    if arch and arch != gfx:
        return False, f"{stored.name} is for {arch} and this chip is {gfx}"
    proof = store.read_proof(store.proof_key(found.torch, found.build, stored.digest, gfx))
    if not proof:
        return False, f"no proof of {stored.name} is on file for torch {found.torch}, this rocBLAS and {gfx}"
    if proof.get("verdict") != "passed":
        return False, f"the proof of {stored.name} failed"
    return True, f"proven on {gfx} with torch {found.torch}"


def kernel_tables(pid: int, root: str = "/proc") -> dict[str, Any]:
    """What a running process has really got: its variable, the librocblas it mapped, kernel files it holds.

    Reads /proc/PID; everything is None or empty where the process is gone or belongs to somebody else.
    """
    place = Path(root) / str(pid)
    variable: str | None = None
    try:
        for entry in (place / "environ").read_bytes().split(b"\0"):
            key, _, value = entry.partition(b"=")
            if key.decode("utf-8", "replace") == VARIABLE:
                variable = value.decode("utf-8", "replace")
    except OSError:
        pass
    mapped: set[str] = set()
    try:
        for line in (place / "maps").read_text("utf-8", "replace").splitlines():
            name = line.split(maxsplit=5)[5] if len(line.split(maxsplit=5)) == 6 else ""
            if "librocblas" in name or name.endswith((".co", ".hsaco", ".dat")):
                mapped.add(name)
    except OSError:
        pass
    libraries = sorted(name for name in mapped if "librocblas" in name)
    return {
        "pid": pid,
        "variable": variable,
        "rocblas": libraries,
        "kernel_files": sorted(mapped - set(libraries)),
        "tuned": variable is not None,
    }


def status() -> dict[str, Any]:
    """Everything ``kernels status`` shows: the choice, libraries with their proofs, the runner, live runs."""
    from bc250studio import jobs

    chip = presets.detect()
    found = runner()
    use, name = store.choice()
    listed = []
    for stored in store.libraries():
        verdict, reason = proven(stored, chip.gfx, found) if chip.gfx else (False, "this machine has no AMD GPU")
        listed.append(
            {"name": stored.name, "folder": str(stored.folder), "proven": verdict, "why": reason, **stored.about}
        )
    running = []
    for standing in jobs.live():
        worker = read_json(standing.job.path / "state.json").get("worker")
        pid = worker.get("pid") if isinstance(worker, dict) else None
        if isinstance(pid, int):
            running.append({"run": standing.job.name, **kernel_tables(pid)})
    return {
        "use": use,
        "library": name,
        "chip": chip.gfx or chip.name,
        "runner": found.as_dict(),
        "libraries": listed,
        "running": running,
    }
