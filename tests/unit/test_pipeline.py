"""The supervisor: stages in order, kept when unchanged, each failure with its exit code and its sentence."""

from __future__ import annotations

import signal
import sys
import types

import pytest

from bc250studio import jobs, pipeline, profiles, telemetry
from bc250studio.errors import BadInput, JobFailed
from bc250studio.pipeline import queue, rehearsal, report, summary, supervisor


@pytest.fixture
def job():
    return jobs.JobFolder.create("train", profiles.from_text("", "x.toml", "demo"))


@pytest.fixture
def stages(monkeypatch):
    """Stage modules of this test: name -> what its run returns or raises; `calls` counts."""
    calls: list[str] = []
    depends = {"data": 1}

    def install(**outcomes):
        for name, outcome in outcomes.items():
            module = types.ModuleType(f"stage_of_test_{name}")

            def run(job, resolved, progress, name=name, outcome=outcome):
                calls.append(name)
                progress("working", 1, 2)
                if isinstance(outcome, BaseException):
                    raise outcome
                return outcome() if callable(outcome) else dict(outcome)

            module.run, module.inputs = run, lambda job, resolved: dict(depends)
            monkeypatch.setitem(sys.modules, module.__name__, module)
            monkeypatch.setitem(supervisor.MODULES, name, module.__name__)

    monkeypatch.setattr(supervisor, "_start_guard", lambda job: None)
    keep = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
    yield types.SimpleNamespace(install=install, calls=calls, depends=depends)
    for number, handler in keep.items():
        signal.signal(number, handler)


DONE = {"verdict": "done", "outputs": {}}


def test_stages_run_in_order_and_are_kept_when_nothing_changed(job, stages):
    stages.install(train=DONE, export=DONE)
    assert supervisor.supervise(job, ("train", "export")) == 0
    assert stages.calls == ["train", "export"]
    assert jobs.standing(job).verdict == "done"
    assert supervisor.supervise(job, ("train", "export")) == 0
    assert stages.calls == ["train", "export"]
    stages.depends["data"] = 2
    assert supervisor.supervise(job, ("export",)) == 0
    assert stages.calls == ["train", "export", "export"]


@pytest.mark.parametrize(("error", "code"), [(JobFailed("No room."), 1), (BadInput("No such row."), 2)])
def test_a_failure_stops_the_rest_and_keeps_its_sentence(job, stages, error, code):
    stages.install(train=DONE, export=error, serve=DONE)
    assert supervisor.supervise(job, ("train", "export", "serve")) == code
    assert stages.calls == ["train", "export"]
    state = job.state()
    assert (state["phase"], state["exit_code"], state["error"]) == ("failed", code, str(error))
    assert job.stage("train")["verdict"] == "done"
    assert any(event["text"] == str(error) for event in job.events())


def test_a_bug_ends_in_a_sentence_with_the_log(job, stages, capsys):
    stages.install(train=ZeroDivisionError("oh"))
    assert supervisor.supervise(job, ("train",)) == 1
    assert "pipeline.log" in job.state()["error"]
    assert "Traceback" in capsys.readouterr().err


def test_a_failed_proof_is_exit_3_and_the_questions_are_still_asked(job, stages):
    proof = {"mean_kl": 0.4, "top1": 0.5, "cause": "the scale is off by 0.80"}
    stages.install(prove={"verdict": "failed", "proof": proof}, ask={"verdict": "done", "answers": []})
    assert supervisor.supervise(job, ("prove", "ask")) == 3
    assert stages.calls == ["prove", "ask"]
    told = summary.sentence(summary.summary(job))
    assert "NOT" in told
    assert "0.80" in told


def test_a_stopped_training_ends_the_job_as_stopped(job, stages):
    stages.install(train={"verdict": "stopped"}, export=DONE)
    assert supervisor.supervise(job, ("train", "export")) == 1
    assert jobs.standing(job).verdict == "stopped"
    assert stages.calls == ["train"]


def test_sigterm_during_another_stage_stops_it(job, stages):
    def terminated():
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("went on after SIGTERM")

    stages.install(export=terminated)
    supervisor.supervise(job, ("export",))
    assert jobs.standing(job).verdict == "stopped"


def test_a_result_that_is_gone_is_made_again(job, stages):
    stages.install(serve=DONE)
    supervisor.supervise(job, ("serve",))
    sys.modules[supervisor.MODULES["serve"]].still_there = lambda job, record: False
    supervisor.supervise(job, ("serve",))
    assert stages.calls == ["serve", "serve"]


def test_a_second_owner_is_refused_in_words(job, stages):
    stages.install(train=DONE)
    with jobs.Lock(job.path), pytest.raises(JobFailed, match="already being worked on"):
        supervisor.supervise(job, ("train",))


def test_the_report_is_made_from_the_folder_alone(job, stages):
    stages.install(train={"verdict": "done", "eval_loss_before": 3.0, "eval_loss_after": 1.0, "steps": 2})
    supervisor.supervise(job, ("train",))
    job.event("evaluation", "Evaluation loss 1.0 at step 2.", step=2, loss=1.0)
    page = report.write(job)
    assert "| evaluation loss after | 1.0000 |" in page
    assert "Evaluation loss 1.0 at step 2." in page
    assert (job.path / "report.md").read_text() == page


def test_the_report_counts_pauses_stalls_and_skipped_steps(job, stages):
    stages.install(train={"verdict": "done", "eval_loss_after": 1.0, "steps": 9, "result_step": 6})
    supervisor.supervise(job, ("train",))
    told = telemetry.Writer(job.path / "events.jsonl")
    for t, kind in ((100.0, "paused"), (130.0, "resumed"), (200.0, "paused"), (205.5, "stopped"), (300.0, "stall")):
        told.write({"t": t, "event": kind, "text": f"It {kind}."})
    measured = telemetry.Writer(job.path / "metrics.jsonl")
    for step, skipped in ((1, False), (2, True), (2, True), (3, True)):  # step 2 was taken again after a crash
        measured.write({"step": step, "loss": 2.0, "skipped": skipped})
    page = report.write(job)
    assert "| pauses | 2 (36 s) |" in page
    assert "| stalls | 1 |" in page
    assert "| steps skipped | 2 |" in page
    assert "| best step, the result | 6 |" in page


def test_a_rehearsal_is_the_same_profile_in_two_steps():
    resolved = profiles.load("demo")
    short = rehearsal.rehearsed(resolved)
    assert short.profile.train.steps == 2
    assert short.profile.adapter == resolved.profile.adapter
    assert short.origins["train.steps"] == "rehearsal"


def test_the_queue_freezes_its_entries():
    first = queue.add(profiles.from_text("[train]\nsteps=1", "a.toml", "a"))
    queue.add(profiles.from_text("[train]\nsteps=2", "b.toml", "b"))
    assert [entry.stem.partition("--")[2] for entry in queue.waiting()] == ["a", "b"]
    assert queue.waiting()[0] == first
    assert queue.runner() is None


def test_preflight_refuses_before_anything_is_written():
    with pytest.raises(BadInput, match="smollm2"):
        pipeline.launch(profiles.from_text("[model]\nbase='demo:smollm2-135'", "x"))
    with pytest.raises(BadInput, match="nowhere"):
        pipeline.launch(profiles.from_text("[data]\npath='/nowhere.jsonl'", "x"))
    assert jobs.all_jobs() == []
