"""The training process: ``python -m bc250studio.train.runner JOBDIR``.

Load, prepare, train, evaluate, save, in that order; everything the loop itself does is in engine.py. Between
two steps it answers requests (pause, resume, stop, checkpoint), lets the thermal gate rest, evaluates and saves.
The outcome goes to ``checkpoints/result.json``, where the train stage reads it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
import traceback
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bc250studio import data, paths
from bc250studio.board import presets, thermal
from bc250studio.data import where
from bc250studio.data.rows import Rows
from bc250studio.errors import BadInput, StudioError, clean
from bc250studio.jobs import JobFolder, control
from bc250studio.jobs.folder import read_json
from bc250studio.models import describe, find, load
from bc250studio.models.tokenizer import Tokenizer, load_tokenizer
from bc250studio.train import checkpoints, memory_check, recompute, start_check
from bc250studio.train.engine import Step, Trainer
from bc250studio.train.guards import Guards
from bc250studio.train.journal import Journal, memory_gib
from bc250studio.train.sample import Sampler

RESULT = "result.json"
PLAN = "plan.json"
"""The recompute plan a restart goes on with, after memory ran out."""


class Run:
    """One training process over one job folder."""

    def __init__(self, job: JobFolder) -> None:
        self.job = job
        self.resolved = job.profile()
        self.profile = self.resolved.profile
        self.folder = job.path / "checkpoints"
        self.device = load.choose_device(self.profile.model.device)
        self.journal = Journal(job, self.device)
        self.stop = False
        self.paused = False
        self.best: dict[str, Any] = {}
        """The lowest held-out loss so far: loss, step, checkpoint; ``since``: evaluations without one that is
        lower than ``reference`` by ``early_stop_min_delta``."""
        self.saved: int | None = None
        """Step whose checkpoint on disk is known to be whole: it is not written twice."""
        self.evaluated: tuple[int, float] | None = None
        self.eval_loss: float | None = None
        self._sampler: Sampler | None = None
        self._sample_failed = False
        self.before: tuple[float | None, int] = (None, 0)
        """Held-out loss before the first step, and how many tokens it was measured on."""

    def __call__(self) -> dict[str, Any]:
        """Train to the end; the record of the stage."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stop", True))
        profile, journal = self.profile, self.journal
        torch.manual_seed(profile.train.seed)
        dtype = load.choose_dtype(profile.model.precision, self.device)
        self.source = source = find.find(profile.model.base, profile.model.revision)

        journal.phase("preparing", f"Reading and tokenising {clean(profile.data.path, 200)}.")
        self.prepared = data.prepare(profile, source)

        journal.phase(
            "loading", f"Loading {clean(source.name)} as {str(dtype).removeprefix('torch.')} on {self.device}."
        )
        model = load.load(source, dtype=dtype, device=self.device, trust_remote_code=profile.model.trust_remote_code)
        if model.conversion.vanished or dtype is torch.float16:
            journal.note(model.conversion.sentence(dtype))
        recompute.cap(profile.train, self.device)
        self.trainer = trainer = Trainer(
            model,
            self.prepared.train,
            profile.train,
            profile.adapter,
            start_from=start_from(profile.adapter.start_from),
            recompute_plan=read_json(self.folder / PLAN).get("recompute"),
            note=journal.note,
        )
        self.base_name = profile.model.base
        self.belongs_to = checkpoints.identity(profile, self.prepared.digest)
        self._begin_or_go_on()

        journal.note(start_check.check(trainer))

        cool_c = self.job.state().get("cool_start_c")  # after a reboot: whatever hung the board, it was hot
        heat = profile.thermal
        if isinstance(cool_c, (int, float)) and heat.start_below_c is None:
            heat = heat.model_copy(update={"start_below_c": float(cool_c)})
        gate = thermal.Gate(
            self.job,
            heat,
            thermal.limits(heat, presets.of("cpu") if self.device.type == "cpu" else presets.detect()),
            asked_to_stop=self._asked_to_stop,
        )
        gate.before_start()
        journal.phase("training", f"Training {len(trainer.plan):,} steps.", step=trainer.done, steps=len(trainer.plan))
        memory_check.reset_peak(self.device)
        memory = memory_check.MemoryCheck(profile, source, trainer, self.job.event)
        guards = Guards(trainer, self.job.event, self._row_words, self._loss_of_row)
        for step in trainer.steps() if not self._patience_is_over() else ():
            journal.step(step, eval_loss=self.eval_loss, best_eval_loss=self.best.get("loss"), device=str(self.device))
            guards.after(step)
            memory.after(step)
            self._between(step, gate)
            if self.stop or self._patience_is_over():
                break
        return self._finish(gate)

    # -- before, between, after --------------------------------------------------------------------------------

    def _begin_or_go_on(self) -> None:
        found = checkpoints.whole(self.folder)
        if found:
            last = found[-1]
            checkpoints.restore(self.trainer, last, self.belongs_to)
            self.saved = last.step
            self.best = dict(last.state.get("best") or {})
            self.eval_loss = last.state.get("eval_loss")
            self.journal.loss_ema = last.state.get("loss_ema")
            self.journal.skipped = int(last.state.get("skipped") or 0)
            self.job.event("resumed", f"Went on from the checkpoint of step {last.step}.", step=last.step)
            self.before = last.state.get("eval_loss_before"), int(last.state.get("eval_tokens") or 0)
            return
        if not len(self.prepared.evaluation):
            self.journal.note("No rows are kept for evaluation; only the training loss will be known.")
            return
        self.journal.phase("evaluating", "Measuring the loss on held-out rows before training.")
        loss, tokens = self.trainer.evaluate(self.prepared.evaluation)
        self.job.event("evaluation", f"Held-out loss before training: {loss:.4f}.", loss=loss, step=0, tokens=tokens)
        self.before, self.eval_loss = (loss, tokens), loss
        self._say_a_sample(0)  # the base model's own answer, to read the later ones against

    def _between(self, step: Step, gate: thermal.Gate) -> None:
        train, last = self.profile.train, step.number == step.of
        if train.eval_every and step.number % train.eval_every == 0 and not last and len(self.prepared.evaluation):
            self._evaluate(step.number)
        if train.checkpoint_every and step.number % train.checkpoint_every == 0 and not last:
            self._save()
        self._answer()
        while self.paused and not self.stop:
            time.sleep(0.2)
            if time.time() - (self.job.state().get("heartbeat") or 0.0) > 5.0:  # alive, and the drive has peace
                self.job.write_state(phase="paused")
            self._answer()
        if not self.stop and not last:
            gate.between_steps(checkpoint=self._save)

    def _asked_to_stop(self) -> bool:
        self._answer()
        return self.stop

    def _answer(self) -> None:
        """Requests in ``control/``."""
        for request in control.take(self.job):
            verb = request["verb"]
            if verb == "stop":
                self.stop = True
            elif verb == "pause" and not self.paused:
                self.paused = True
                self._save()
                self.job.write_state(phase="paused")
                self.job.event("paused", "Paused as asked; a checkpoint is written.", reason="asked")
            elif verb == "resume" and self.paused:
                self.paused = False
                self.job.write_state(phase="training")
                self.job.event("resumed", "Went on as asked.", reason="asked")
            elif verb == "checkpoint":
                self._save()
            elif verb == "note":
                self.job.event("note", clean(request.get("text", ""), 500))

    def _evaluate(self, step: int) -> float:
        if self.evaluated is not None and self.evaluated[0] == step:
            return self.evaluated[1]
        self.journal.phase("evaluating", f"Measuring the held-out loss after step {step}.")
        loss, tokens = self.trainer.evaluate(self.prepared.evaluation)
        self.eval_loss, self.evaluated = loss, (step, loss)
        if loss < self.best.get("reference", math.inf) - self.profile.train.early_stop_min_delta:
            self.best = {**self.best, "reference": loss, "since": 0}
        else:
            self.best["since"] = int(self.best.get("since", 0)) + 1
        better = loss < self.best.get("loss", math.inf)
        if better:
            self.best |= {"loss": loss, "step": step, "checkpoint": f"step-{step:06d}"}
        self.job.event(
            "evaluation", f"Held-out loss after step {step}: {loss:.4f}.", loss=loss, step=step, tokens=tokens
        )
        self._say_a_sample(step)
        if better and step < len(self.trainer.plan):
            self._save()
        self.job.write_state(phase="training", eval_loss=loss, best_eval_loss=self.best.get("loss"))
        return loss

    def _say_a_sample(self, step: int) -> None:
        """A short greedy answer to a held-out prompt; that it fails is said once and costs nothing else."""
        try:
            if self._sampler is None:
                self._sampler = Sampler(self._tokenizer, self.prepared.eval_chats, self.prepared.thinking)
            if self._sampler.prompt is None:
                return
            ends = [i for i in (*describe.describe(self.source).eos_ids, self._tokenizer.eos_id) if i is not None]
            answer = self._sampler.answer(self.trainer, ends)
        except (StudioError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            if not self._sample_failed:
                self.journal.note(f"No sample answers at evaluations: {clean(error, 200)}")
            self._sample_failed = True
            return
        prompt = clean(self._sampler.prompt, 200)
        when = f"After step {step}" if step else "Before training"
        text = f"{when}, asked {prompt!r}: {clean(answer, 500)}"
        self.job.event("sample", text, step=step, prompt=prompt, answer=clean(answer, 500))

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.source)

    @cached_property
    def _places(self) -> list[str]:
        """Where in the file each training row stands; empty when the file cannot be asked any more."""
        try:
            found = where.places(self.profile, self.source)
        except (StudioError, OSError, ValueError):
            return []
        return found if len(found) == len(self.prepared.train) else []

    def _row_words(self, row: int) -> str:
        """``line 17 of rows.jsonl ('How many ...')``."""
        ids, _ = self.prepared.train.row(row)
        begin = " ".join(self._tokenizer.decode([int(i) for i in ids[:40]]).split())
        known = self._places
        place = f"{known[row]} of {Path(self.profile.data.path).name}" if known else f"training row {row + 1}"
        return f"{clean(place, 80)} ({clean(begin, 60)!r})"

    def _loss_of_row(self, row: int) -> float:
        ids, labelled = self.prepared.train.row(row)
        return self.trainer.evaluate(Rows.of([(ids.tolist(), labelled.tolist())]))[0]

    def _patience_is_over(self) -> bool:
        patience = self.profile.train.early_stop_patience
        if not patience or int(self.best.get("since", 0)) < patience:
            return False
        self.job.event("note", f"Stopped early: {patience} evaluations without a better loss.", best=self.best)
        return True

    def _save(self) -> None:
        if self.saved == self.trainer.done:
            return
        started = time.perf_counter()
        self.job.write_state(phase="saving")
        path = checkpoints.write(
            self.trainer,
            self.folder,
            self.base_name,
            self.belongs_to,
            {
                "best": self.best,
                "eval_loss": self.eval_loss,
                "eval_loss_before": self.before[0],
                "eval_tokens": self.before[1],
                "loss_ema": self.journal.loss_ema,
                "skipped": self.journal.skipped,
            },
        )
        self.saved = self.trainer.done
        checkpoints.prune(self.folder, self.profile.train.keep_checkpoints, self.best.get("checkpoint"))
        size = sum(f.stat().st_size for f in path.iterdir())
        self.job.write_state(phase="training")
        self.job.event(
            "checkpoint",
            f"Checkpoint of step {self.trainer.done}: {size / 2**20:.1f} MiB in {time.perf_counter() - started:.1f} s.",
            step=self.trainer.done,
            size_bytes=size,
        )

    @property
    def _kind(self) -> str:
        return "model" if self.trainer.full else "adapter"

    def _take_the_best(self, after: float) -> tuple[int, float]:
        """The result is the best evaluated step: its weights come back when a later one was worse."""
        step, loss = self.best.get("step"), self.best.get("loss", math.inf)
        if step == self.trainer.done or not loss < after:
            return self.trainer.done, after
        kept = next((c for c in checkpoints.whole(self.folder) if c.step == step), None)
        if kept is None:
            self.job.event("warning", f"The best checkpoint (step {step}) is gone; the last step is the result.")
            return self.trainer.done, after
        checkpoints.take_weights(self.trainer, kept)
        self.journal.note(
            f"The result is step {step}, whose held-out loss {loss:.4f} is the lowest; the last step's is {after:.4f}."
        )
        return int(kept.step), float(loss)

    def _finish(self, gate: thermal.Gate) -> dict[str, Any]:
        trainer, journal = self.trainer, self.journal
        if self.stop and trainer.done < len(trainer.plan):
            self._save()
            self.job.event("stopped", f"Stopped as asked after step {trainer.done}; a checkpoint is written.")
            # A peek exports what there is so far.
            outputs = {self._kind: f"checkpoints/step-{trainer.done:06d}"}
            return {"verdict": "stopped", "steps": trainer.done, "outputs": outputs}
        after, result_step = None, trainer.done
        if len(self.prepared.evaluation):
            after = self._evaluate(trainer.done)
            result_step, after = self._take_the_best(after)
        journal.phase("saving", "Writing the result.")
        final = checkpoints.write(
            trainer,
            self.folder,
            self.base_name,
            self.belongs_to,
            {"best": self.best, "eval_loss": after},
            checkpoints.FINAL,
        )
        return {
            "verdict": "done",
            "outputs": {self._kind: f"checkpoints/{final.name}"},
            "eval_loss_before": self.before[0],
            "eval_loss_after": after,
            "eval_tokens": self.before[1],
            "steps": trainer.done,
            "result_step": result_step,
            "steps_per_epoch": trainer.steps_per_epoch(),
            "rates": journal.rates(),
            "peak_memory_gib": round(memory_gib(self.device), 3),
            "device": device_name(self.device),
            "train_seconds": round(journal.seconds, 3),
            "skipped": journal.skipped,
            "trainable": trainer.flat.count,
            "thermal": gate.summary(),
            "data_digest": self.prepared.digest,
            "versions": versions(),
        }


def start_from(reference: str | None) -> Path | None:
    """The PEFT folder that ``adapter.start_from`` means: a folder, or a run's final adapter.

    Raises:
        BadInput: neither.
    """
    if reference is None:
        return None
    path = Path(reference).expanduser()
    if (path / "adapter_config.json").is_file():
        return path
    from bc250studio.jobs import find as find_job

    found = find_job(reference).path / "checkpoints" / checkpoints.FINAL
    if (found / "adapter_config.json").is_file():
        return found
    raise BadInput(
        f"adapter.start_from = {clean(reference, 200)!r} holds no adapter_config.json and is no finished run."
    )


def device_name(device: torch.device) -> str:
    """For a reader: the GPU's name, or how many threads the CPU works with."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    return f"cpu ({torch.get_num_threads()} threads)"


def versions() -> dict[str, str]:
    """What computed this."""
    import peft
    import transformers

    import bc250studio

    return {
        "bc250studio": bc250studio.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "python": sys.version.split()[0],
    }


def _be_modest() -> None:
    """A shell on the board stays usable, and when memory ends the kernel takes us before sshd."""
    try:
        os.nice(max(0, 10 - os.nice(0)))
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        pass


def main(arguments: list[str]) -> int:
    """Exit code 0 done or stopped, else the error's; the sentence stands in ``result.json`` and on stderr."""
    job = JobFolder(Path(arguments[0]).resolve())
    _be_modest()
    result = job.path / "checkpoints" / RESULT
    result.unlink(missing_ok=True)
    try:
        record = Run(job)()
        code = 0
    except recompute.OutOfMemory as error:
        record, code = {"verdict": "failed", "error": str(error)}, 1
        if error.plan is not None:
            paths.write_atomic(job.path / "checkpoints" / PLAN, json.dumps({"recompute": error.plan}))
            job.event("fallback", str(error), recompute=recompute.words(error.plan))
            record["verdict"] = "again"
    except StudioError as error:
        record, code = {"verdict": "failed", "error": str(error)}, error.exit_code
    except OSError as error:
        traceback.print_exc()
        text = f"Training ended in the middle: {clean(error, 300)}. Its last checkpoint is whole; put this right "
        record, code = {"verdict": "failed", "error": text + "and go on with: bc250studio resume"}, 1
    except Exception as error:
        traceback.print_exc()
        text = f"Training failed: {type(error).__name__}: {clean(error, 300)}. The traceback is in {job.path / 'logs'}."
        record, code = {"verdict": "failed", "error": text}, 1
    if record.get("error"):
        print(record["error"], file=sys.stderr)
    try:
        paths.write_atomic(result, json.dumps({**record, "exit_code": code}, indent=1))
    except OSError as error:  # a full disk: the train stage then quotes the log's last lines
        print(f"The outcome could not be written to {result}: {error}.", file=sys.stderr)
        code = code or 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
