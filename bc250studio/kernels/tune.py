"""``kernels tune`` as a job: part by part through the user's Tensile, watched, resumable, winners into logic files.

``python -m bc250studio.kernels.tune JOBDIR``. In the job's folder: ``tune/plan.json``, ``tune/plan/PART.yaml``,
``tune/PART/`` (Tensile's own folders), ``tune/PART.json`` (the part's verdict), ``tune/logic/*.yaml`` (winners),
``tune/live.json`` (the table). A part that hangs or crashes is marked and the next one begins.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.errors import BadInput, JobFailed, StudioError, clean
from bc250studio.jobs import JobFolder, Lock, control
from bc250studio.jobs.folder import read_json
from bc250studio.kernels import build, logic, plan, products, results, toolchain, watch
from bc250studio.kernels.chip import Chip
from bc250studio.kernels.live import Live
from bc250studio.kernels.plan import Part, Plan
from bc250studio.kernels.products import ShapeList
from bc250studio.kernels.tensile import GFX, Tensile, configured

START_BELOW_C = 55.0
COOL_TIMEOUT_S = 1800.0
DISTANCES = {"fp32": "Equality", "fp16": "Euclidean", "bf16": "Euclidean"}
"""Until measured otherwise: any tuned 16-bit kernel beats the fallback; two FP32 shapes of the post got slower."""


def create(
    shapes: ShapeList, chip: Chip, *, most: int = plan.MOST_DESIGNS, widen: bool = True, quiet_s: float = watch.QUIET_S
) -> JobFolder:
    """A new tuning job; nothing runs yet.

    Raises:
        BadInput: no Tensile for gfx1013 is set, or there is nothing to tune.
    """
    configured()
    if not plan.plan(shapes, chip, most).parts:
        raise BadInput("There is nothing to tune in this shape list.")
    job = JobFolder.create("tune", None, f"tune {shapes.model}")
    paths.private_dir(job.path / "tune")
    order = {
        "shapes": shapes.as_dict(chip),
        "compute_units": chip.compute_units,
        "clock_mhz": chip.clock_mhz,
        "bandwidth_gb_s": chip.bandwidth_gb_s,
        "most": most,
        "widen": widen,
        "quiet_s": quiet_s,
    }
    paths.write_atomic(job.path / "tune" / "plan.json", json.dumps(order, indent=1))
    return job


class Tuning:
    """One run over a job's parts; may be run again after a stop, a crash or a reboot."""

    def __init__(self, job: JobFolder) -> None:
        self.job, self.folder = job, job.path / "tune"
        order = read_json(self.folder / "plan.json")
        if not order:
            raise BadInput(f"{job.name} has no tune/plan.json; it is not a tuning job.")
        self.chip = Chip(GFX, int(order["compute_units"]), float(order["clock_mhz"]), float(order["bandwidth_gb_s"]))
        self.shapes = products.from_dict(order["shapes"], str(self.folder / "plan.json"))
        self.plan = plan.plan(self.shapes, self.chip, int(order["most"]))
        self.most, self.widen, self.quiet_s = int(order["most"]), bool(order["widen"]), float(order["quiet_s"])
        self.live = Live(self.folder / "live.json", self.chip)
        self.stopped = False
        self._beat = 0.0

    def run(self) -> dict[str, Any]:
        """All parts, a second pass for slow shapes, then the logic files. Returns the verdicts.

        Raises:
            BadInput: no Tensile or compiler. JobFailed: not one part could be tuned.
        """
        tensile, tools = configured(), toolchain.find()
        self.job.write_state(phase="preparing", stage_text="comparing the two clocks")
        self.kernel_time, why = timers()
        self.job.event("note", f"Kernels are timed by {'device events' if self.kernel_time else 'the host'}: {why}.")
        verdicts = self._parts(self.plan, tensile, tools)
        if self.widen and not self.stopped:
            second = plan.widen(self.plan, self.measured(), self.most)
            if second.parts:
                self.job.event(
                    "note",
                    f"{sum(len(p.products) for p in second.parts)} shapes are under 60 % of roofline: a second pass.",
                )
                verdicts |= self._parts(second, tensile, tools)
        self.live.write(force=True)
        if self.stopped:
            return verdicts
        made = self.collect(tensile.schedule)
        if not made:
            reasons = "; ".join(f"{name}: {record['why']}" for name, record in verdicts.items())
            raise JobFailed(f"Not one part could be tuned ({reasons}). Log: {self.job.path / 'logs' / 'tune.log'}")
        self.job.event(
            "note",
            f"{len(made)} logic files were written; next: bc250studio kernels install {self.job.name}",
        )
        return verdicts

    def measured(self) -> dict[str, dict[results.Size, float]]:
        """Part -> size -> best GFLOPS, from the records on disk."""
        found: dict[str, dict[results.Size, float]] = {}
        for file in self.folder.glob("*.json"):
            record = read_json(file)
            if isinstance(record.get("best"), list) and record.get("verdict"):
                found[file.stem] = {
                    (e["size"][0], e["size"][1], e["size"][2], e["size"][3]): e["gflops"] for e in record["best"]
                }
        return found

    def _parts(self, work: Plan, tensile: Tensile, tools: toolchain.Toolchain) -> dict[str, dict[str, Any]]:
        verdicts: dict[str, dict[str, Any]] = {}
        files = plan.write(work, self.folder / "plan", tensile.schedule, self.kernel_time)
        for number, (part, file) in enumerate(zip(work.parts, files, strict=True), 1):
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            record_file = self.folder / f"{part.name}.json"
            known = read_json(record_file)
            if known.get("verdict") == "done" and known.get("inputs") == digest:
                verdicts[part.name] = known
                self.job.event("note", f"{part.name} is done already.")
                continue
            if self._stop():
                break
            self.cool(part.name)
            self.job.write_state(
                phase="training", stage_text=f"tuning {part.name} ({number} of {len(work.parts)})", part=part.name
            )
            try:
                record = self.tune_part(part, file, tensile, tools)
            except StudioError as error:
                record = {"verdict": "failed", "why": clean(error, 400)}
            if self.stopped:
                break
            record |= {"inputs": digest, "name": part.name, "t": time.time()}
            paths.write_atomic(record_file, json.dumps(record, indent=1))
            verdicts[part.name] = record
            kind = "note" if record["verdict"] == "done" else "warning"
            self.job.event(kind, f"{part.name}: {record['verdict']}, {record['why']}.")
        return verdicts

    def tune_part(self, part: Part, file: Path, tensile: Tensile, tools: toolchain.Toolchain) -> dict[str, Any]:
        """One Tensile run, checked and, where times were impossible, its logic made again without them."""
        out = self.folder / part.name
        if not any((out / "2_BenchmarkData").glob("*.csv")):
            shutil.rmtree(out, ignore_errors=True)
        log = self.job.path / "logs" / f"{part.name}.log"
        outcome = self._tensile(part, file, out, log, tensile, tools)
        if self.stopped:
            return {"verdict": "stopped", "why": "asked to stop"}
        if outcome.silent:
            return {
                "verdict": "hung",
                "why": f"Tensile {outcome.words} without output; the part is left to stock kernels",
            }
        tables = sorted((out / "2_BenchmarkData").glob("*.csv"))
        if not tables:
            return {
                "verdict": "failed",
                "why": f"Tensile {outcome.words} and left no results. {build.explain(log)}".strip(),
            }
        count = kernels_in(tables[0])
        table = results.read_csv(tables[0], count)
        if table.reject_impossible(self.chip, part.dtype):
            table.write()
            for line in table.rejected[:20]:
                self.say(f"{part.name}  rejected {line}")
            outcome = self._tensile(part, file, out, log, tensile, tools)
        made = sorted((out / "3_LibraryLogic").glob("*.yaml"))
        best = table.best()
        if not made or not best:
            why = (
                "no kernel gave a right result in a possible time"
                if not best
                else f"Tensile {outcome.words} and wrote no logic"
            )
            return {"verdict": "failed", "why": why, "rejected": len(table.rejected)}
        top = 100 * max(speed / self.live.ceiling(size, part.dtype) for size, (_, speed) in best.items())
        return {
            "verdict": "done",
            "why": f"{len(best)} of {len(part.products)} sizes, {count} kernels, best {top:.0f} % of roofline",
            "logic": str(made[0]),
            "kernels": count,
            "rejected": len(table.rejected),
            "best": [{"size": list(size), "kernel": name, "gflops": speed} for size, (name, speed) in best.items()],
            "seconds": outcome.seconds,
        }

    def _tensile(
        self, part: Part, file: Path, out: Path, log: Path, tensile: Tensile, tools: toolchain.Toolchain
    ) -> watch.Outcome:
        def on_line(line: str) -> None:
            row = results.parse(line)
            if row is not None:
                self.say(self.live.take(part, row))
                self._heartbeat(row)

        cache = paths.private_dir(paths.cache_dir()) / f"tensile-{tensile.version}-caps.yaml"
        command = [build.python(), str(tensile.program), str(file), str(out), "--asm-cache", str(cache)]
        command += ["--cxx-compiler", tools.compiler] if tools.compiler != "clang++" else []
        client = os.environ.get("BC250STUDIO_TENSILE_CLIENT")
        command += ["--prebuilt-client", client] if client else []
        return watch.run(
            command,
            folder=self.folder,
            environment=tools.environment(os.environ),
            log=log,
            on_line=on_line,
            growing=lambda: [*out.glob("1_BenchmarkProblems/*/Data/*.csv"), *out.glob("2_BenchmarkData/*.csv")],
            quiet_s=self.quiet_s,
            stop=self._stop,
        )

    def collect(self, schedule: str) -> list[Path]:
        """The parts' logic files: tag off, distance set, passes of one class merged, named for the chip."""
        by_class: dict[tuple[str, str], logic.Logic] = {}
        for file in sorted(self.folder.glob("*.json")):
            record = read_json(file)
            if record.get("verdict") != "done" or not Path(str(record.get("logic"))).is_file():
                continue
            item = logic.read(Path(record["logic"]))
            label = (item.dtype or "", item.layout)
            by_class[label] = logic.merge(by_class[label], item) if label in by_class else item
        folder = paths.private_dir(self.folder / "logic")
        for old in folder.glob("*.yaml"):
            old.unlink()
        made = []
        for (dtype, _), item in by_class.items():
            item.set_metric()
            item.set_distance(DISTANCES.get(dtype, "Euclidean"))
            name = item.path.name if schedule in item.path.name else f"{schedule}_{item.path.name}"
            item.write(folder / name)
            made.append(folder / name)
        return made

    def cool(self, name: str) -> None:
        """Wait until the chip is below 55 °C; a machine without a trusted temperature does not wait."""
        from bc250studio.board.sensors import Sensors

        sensors = Sensors.discover()
        deadline = time.monotonic() + COOL_TIMEOUT_S
        while not self._stop():
            reading = sensors.read().get("gpu_temp_c")
            value = reading.value if reading is not None and reading.trust == "good" else None
            if value is None or value < START_BELOW_C:
                return
            if time.monotonic() > deadline:
                self.job.event("warning", f"The chip stayed at {value:.0f} °C for half an hour; {name} starts warm.")
                return
            self.job.write_state(
                phase="cooling", stage_text=f"cooling: {value:.0f} °C, start below {START_BELOW_C:.0f} °C"
            )
            time.sleep(2)

    def say(self, line: str) -> None:
        """A plain line of the live table, into the job's log."""
        print(line, flush=True)

    def _heartbeat(self, row: results.Row) -> None:
        if time.monotonic() - self._beat > 1:
            self._beat = time.monotonic()
            self.job.write_state(stage_done=row.done, stage_total=row.total)

    def _stop(self) -> bool:
        if any(request["verb"] == "stop" for request in control.take(self.job)):
            self.stopped = True
        return self.stopped


def kernels_in(table: Path) -> int:
    """Columns of a benchmark CSV that are kernels: those named as Tensile names them."""
    try:
        header = table.read_text("utf-8", "replace").splitlines()[0].split(",")
    except (OSError, IndexError):
        return 0
    return sum(1 for cell in header if cell.strip().startswith("Cijk_"))


def timers() -> tuple[bool, str]:
    """Whether device events may be believed here, and why: compared with the host over one large product."""
    from bc250studio.kernels import prove

    try:
        found = prove.run_child({"timers": True}, None, lambda *_: None)
    except JobFailed as error:
        return False, f"the comparison could not be run ({clean(error, 160)})"
    return bool(found["agree"]), str(found["why"])


def main(arguments: list[str]) -> int:
    """The job's process."""
    job = JobFolder(Path(arguments[0]))
    with Lock(job.path):
        job.own("preparing")
        try:
            tuning = Tuning(job)
            verdicts = tuning.run()
        except StudioError as error:
            job.event("error", str(error))
            job.write_state(phase="failed", error=clean(error, 500), exit_code=error.exit_code)
            return error.exit_code
        done = sum(record["verdict"] == "done" for record in verdicts.values())
        phase = "stopped" if tuning.stopped else "done"
        job.event("phase", f"Tuning {phase}: {done} of {len(verdicts)} parts.")
        job.write_state(phase=phase, parts_done=done, parts=len(verdicts), exit_code=0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
