"""Kill tiny runs wherever it hurts, let them go on, and compare the final adapter bit for bit.

``python tests/survival.py --kills 200`` shows it at length; tests/flows/test_survival.py takes a few. The parent
imports torch once and forks; each child is ``train.runner.main`` over a job folder. Kinds of disturbance:

    moment      SIGKILL at a random time
    call        SIGKILL before or after the n-th call that changes the disk (open, write, fsync, rename, unlink)
    torn        the trainer's tensors are cut at a random byte while being written, then SIGKILL
    power       at such a call the machine loses power: what was not synced is gone, cut or zeros, a rename whose
                folder was not synced is undone by the toss of a coin
    full        the run's folder lies on a file system with a random amount of room (tmpfs when root, else a limit
                on file sizes); afterwards there is room again
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bc250studio import profiles, telemetry
from bc250studio.jobs import JobFolder
from bc250studio.train import checkpoints, runner

KINDS = ("moment", "call", "torn", "power", "full")
STEPS = 8


# -- what is trained -------------------------------------------------------------------------------------------


def byte_model(folder: Path, poisoned: str | None = None) -> Path:
    """A one-layer random Llama over bytes: a whole run takes a fraction of a second.

    ``poisoned``: a letter whose embedding is NaN, so that rows with it have no finite loss.
    """
    import tokenizers
    import transformers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0} | {letter: i + 1 for i, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=len(vocabulary), max_position_embeddings=256, tie_word_embeddings=poisoned is None,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
        if poisoned is not None:
            model.get_input_embeddings().weight[vocabulary[poisoned]] = float("nan")
    model.save_pretrained(folder)
    return folder


class Arena:
    """A model, a dataset, and how a run over them ends when nothing happens to it.

    ``final``: digests of the final adapter's files; ``metrics``: (step, loss, rate) of every step; ``seconds`` and
    ``calls``: how long a run takes and how often it changes the disk.
    """

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        rows = [{"prompt": f"{n} and {n}", "completion": f" make {2 * n}, not {n * n}"} for n in range(40)]
        (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        self.settings = {
            "model.base": str(byte_model(root / "model")),
            "model.device": "cpu",
            "data.path": str(root / "rows.jsonl"),
            "data.eval_fraction": 0.2,
            "adapter.rank": 4,
            "adapter.dropout": 0.1,  # draws random numbers: going on must go on with the same ones
            "train.steps": STEPS,
            "train.tokens_per_step": 256,
            "train.tokens_per_pass": 256,
            "train.learning_rate": 5e-2,
            "train.schedule": "constant",
            "train.loss_chunk": 64,
            "train.checkpoint_every": 2,
            "train.eval_every": 3,
            **settings,
        }
        job = self.job()
        began = time.perf_counter()
        runner.main([str(job.path)])  # in this process: imports and caches are then paid for
        job = self.job()
        began = time.perf_counter()
        ended = self.attempt(job, lambda: None)
        self.seconds = time.perf_counter() - began
        assert ended == 0, (job.path / "logs" / "train.log").read_text()
        self.final, self.metrics = final_of(job), metrics_of(job)
        self.result = json.loads((job.path / "checkpoints" / runner.RESULT).read_text())
        counting = self.job()
        self.attempt(counting, lambda: count_calls(counting))
        self.calls = int((counting.path / "calls").read_text())

    def job(self) -> JobFolder:
        """A fresh run."""
        return JobFolder.create("train", profiles.from_text("", "survival", "tiny", self.settings))

    def attempt(self, job: JobFolder, prepare: Callable[[], None], kill_after_s: float | None = None) -> int:
        """One training process; its exit code, negative when a signal ended it."""
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                log = os.open(job.path / "logs" / "train.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(log, 1)
                os.dup2(log, 2)
                runner._be_modest = lambda: None  # at nice 10 the rounds would starve beside other tests
                prepare()
                code = runner.main([str(job.path)])
            finally:
                os._exit(code)
        if kill_after_s is not None:
            descriptor = os.pidfd_open(pid)
            try:
                _ended_within(descriptor, kill_after_s)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)


def _ended_within(pidfd: int, seconds: float) -> bool:
    import select

    return bool(select.select([pidfd], [], [], seconds)[0])


def final_of(job: JobFolder) -> dict[str, str]:
    """sha256 of each file a user would load."""
    folder = job.path / "checkpoints" / checkpoints.FINAL
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("adapter_model.safetensors", "adapter_config.json")
    }


def metrics_of(job: JobFolder) -> list[tuple[int, float, float]]:
    """(step, loss, rate), the last time each step was taken. Lines that power loss took are missing."""
    lines = telemetry.read_all(job.path / "metrics.jsonl")
    return sorted({line["step"]: (line["step"], line["loss"], line["lr"]) for line in lines}.values())


# -- what happens to it ----------------------------------------------------------------------------------------


class Disk:
    """Watches every call of this process that changes the disk, and may end it at one of them."""

    def __init__(self, folder: Path, at_call: int, end: Callable[[Disk], None], after: bool = False) -> None:
        self.folder, self.at_call, self.end, self.after = folder, at_call, end, after
        self.count = 0
        self.began = time.time_ns()
        self.synced: dict[int, tuple[int, int]] = {}
        self.unsynced_renames: list[tuple[Path, Path, Path, Path | None]] = []
        for path in folder.rglob("*"):
            if path.is_file():
                stat = path.stat()
                self.synced[stat.st_ino] = (stat.st_size, stat.st_mtime_ns)
        for name in ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
            setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not (arguments[1] if len(arguments) > 1 else options.get("flags", 0)) & os.O_CREAT:
                return real(*arguments, **options)
            self.count += 1
            if self.count == self.at_call and not self.after:
                self.end(self)
            if name in ("rename", "replace"):
                self._before_rename(Path(arguments[0]), Path(arguments[1]))
            result = real(*arguments, **options)
            if name == "fsync":
                self._synced(arguments[0])
            if self.count == self.at_call and self.after:
                self.end(self)
            return result

        return call

    def _synced(self, descriptor: int) -> None:
        stat = os.fstat(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self.unsynced_renames = [rename for rename in self.unsynced_renames if rename[0] != path]
        else:
            self.synced[stat.st_ino] = (stat.st_size, stat.st_mtime_ns)

    def _before_rename(self, source: Path, target: Path) -> None:
        backup = None
        if target.is_file():
            backup = self.folder.parent / f".backup-{os.getpid()}-{len(self.unsynced_renames)}-{target.name}"
            backup.unlink(missing_ok=True)
            os.link(target, backup)
        self.unsynced_renames.append((target.parent, source, target, backup))

    def lose_power(self, chance: random.Random) -> None:
        """Leave on disk what a power cut may leave."""
        for _, source, target, backup in reversed(self.unsynced_renames):
            if chance.random() < 0.5 and target.exists() and not source.exists():
                target.rename(source)
                if backup is not None:
                    shutil.copy2(backup, target)
                    stat = target.stat()
                    self.synced[stat.st_ino] = (stat.st_size, stat.st_mtime_ns)
        for path in [p for p in self.folder.rglob("*") if p.is_file()]:
            stat = path.stat()
            size, written = self.synced.get(stat.st_ino, (0, -1))
            if (stat.st_size, stat.st_mtime_ns) == (size, written) or path.name == "train.log":
                continue
            fate = chance.choice(("cut", "cut", "zeros", "gone")) if written == -1 else "cut"
            kept = chance.randint(min(size, stat.st_size), stat.st_size)
            if fate == "gone":
                path.unlink()
            elif fate == "zeros":
                path.write_bytes(bytes(stat.st_size))
            else:
                os.truncate(path, kept)


def die(disk: Disk | None = None) -> None:
    """As the kernel's own kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def count_calls(job: JobFolder) -> None:
    """How often a whole run changes the disk, into the file ``calls``."""
    disk = Disk(job.path, 0, die)
    main = runner.main

    def counted(arguments: list[str]) -> int:
        code = main(arguments)
        (job.path / "calls").write_text(str(disk.count))
        return code

    runner.main = counted


def die_at_call(job: JobFolder, at: int, after: bool) -> None:
    """SIGKILL before or after the ``at``-th call."""
    Disk(job.path, at, die, after)


def lose_power_at_call(job: JobFolder, at: int, seed: int) -> None:
    """Power loss at the ``at``-th call."""

    def end(disk: Disk) -> None:
        disk.lose_power(random.Random(seed))
        die()

    Disk(job.path, at, end, bool(seed % 2))


def die_inside_tensors(job: JobFolder, at: int, seed: int) -> None:
    """The ``at``-th file of tensors is cut short while written."""
    real, seen = checkpoints.save_file, 0

    def torn(tensors: dict[str, Any], path: str) -> None:
        nonlocal seen
        seen += 1
        real(tensors, path)
        if seen == at:
            os.truncate(path, random.Random(seed).randint(0, os.path.getsize(path)))
            die()

    checkpoints.save_file = torn


def limit_files(size: int) -> None:
    """No file of this process may grow beyond ``size``: as a full disk for whoever is not root."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextlib.contextmanager
def small_disk(job: JobFolder, room: int) -> Iterator[bool]:
    """The run's folder on a tmpfs with ``room`` bytes to spare; yields False where mounting is not allowed."""
    with tempfile.TemporaryDirectory() as aside:
        shutil.copytree(job.path, aside, dirs_exist_ok=True)
        options = f"size={room + 65536}"
        if _mount("mount", "-t", "tmpfs", "-o", options, "bc250studio-test", str(job.path)) != 0:
            yield False
            return
        try:
            shutil.copytree(aside, job.path, dirs_exist_ok=True)
            yield True
        finally:
            subprocess.run(["umount", "-l", str(job.path)], check=True)


def _mount(*command: str) -> int:
    if os.geteuid() != 0 or shutil.which(command[0]) is None:
        return 1
    return subprocess.run(command, capture_output=True).returncode


# -- rounds ----------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was done and what came out."""

    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    rounds: int = 0
    attempts: int = 0
    wrong: list[str] = field(default_factory=list)
    resumed_from: collections.Counter[int] = field(default_factory=collections.Counter)
    refusals: collections.Counter[str] = field(default_factory=collections.Counter)

    def line(self) -> str:
        """One line for a person."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        points = ", ".join(f"{step}: {count}" for step, count in sorted(self.resumed_from.items()))
        return (
            f"{self.kills.total()} disturbances ({kinds}) in {self.rounds} runs and {self.attempts} processes; "
            f"went on from step ({points}); {self.rounds - len(self.wrong)} of {self.rounds} final adapters identical"
        )


def round_of(arena: Arena, kind: str, seed: int, tally: Tally) -> None:
    """One run, disturbed once to three times in a way, then left alone until it is done."""
    chance = random.Random(seed)
    job = arena.job()
    room = chance.choice((0, 4096, 30_000, 60_000, 120_000, 200_000, 400_000)) + chance.randint(0, 4096)
    with contextlib.ExitStack() as stack:
        mounted = kind == "full" and stack.enter_context(small_disk(job, room))
        for _ in range(1 if kind == "full" else chance.randint(1, 3)):
            code = _disturbed(arena, job, kind, chance, room, mounted)
            tally.attempts += 1
            if code == 0:
                break
            tally.kills[kind] += 1
            tally.refusals[_sentence(job)] += 1
        if mounted:
            assert _mount("mount", "-o", "remount,size=64m", str(job.path)) == 0
        for _ in range(2):
            if code == 0:
                break
            before = [c.step for c in checkpoints.whole(job.path / "checkpoints")]
            tally.resumed_from[before[-1] if before else 0] += 1
            code = arena.attempt(job, lambda: None)
            tally.attempts += 1
        tally.rounds += 1
        log = (job.path / "logs" / "train.log").read_text()[-2000:]
        if code != 0:
            tally.wrong.append(f"{kind} seed {seed}: ended with {code}: {log}")
            return
        if final_of(job) != arena.final:
            tally.wrong.append(f"{kind} seed {seed}: another adapter ({job.path})")
        elif not set(metrics_of(job)) <= set(arena.metrics):
            tally.wrong.append(f"{kind} seed {seed}: other losses ({job.path})")
    if not tally.wrong:
        shutil.rmtree(job.path, ignore_errors=True)


def _disturbed(arena: Arena, job: JobFolder, kind: str, chance: random.Random, room: int, mounted: bool) -> int:
    seed, at = chance.randrange(2**31), chance.randint(1, arena.calls)
    if kind == "moment":
        return arena.attempt(job, lambda: None, kill_after_s=chance.uniform(0, 1.1 * arena.seconds))
    if kind == "call":
        return arena.attempt(job, lambda: die_at_call(job, at, bool(seed % 2)))
    if kind == "torn":
        return arena.attempt(job, lambda: die_inside_tensors(job, 1 + seed % 5, seed))
    if kind == "power":
        return arena.attempt(job, lambda: lose_power_at_call(job, at, seed))
    return arena.attempt(job, (lambda: None) if mounted else (lambda: limit_files(room)))


def _sentence(job: JobFolder) -> str:
    """How the process itself explained its end, if it could; without numbers and paths."""
    with contextlib.suppress(OSError, ValueError):
        error = json.loads((job.path / "checkpoints" / runner.RESULT).read_text()).get("error") or ""
        return "a sentence: " + error.partition(":")[0].split(" of step")[0][:80]
    return "no word"


def main() -> int:
    """Rounds of all kinds in turn until enough disturbances have landed."""
    parser = argparse.ArgumentParser(description="Kill tiny runs and compare what becomes of them.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bc250studio-survival-") as folder:
        os.environ["BC250STUDIO_HOME"] = str(Path(folder) / "home")
        began = time.perf_counter()
        arena = Arena(Path(folder))
        print(
            f"A run takes {arena.seconds:.2f} s and changes the disk {arena.calls} times; its result is step "
            f"{arena.result['result_step']} of {arena.result['steps']}.",
            flush=True,
        )
        tally, kinds, seed = Tally(), options.kinds.split(","), options.seed
        while tally.kills.total() < options.kills and not tally.wrong:
            round_of(arena, kinds[seed % len(kinds)], seed, tally)
            seed += 1
            if seed % 25 == 0:
                print(tally.line(), flush=True)
        print(f"{tally.line()}; {time.perf_counter() - began:.0f} s", *tally.wrong, sep="\n", flush=True)
        print("their own words:", dict(tally.refusals))
        return int(bool(tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
