"""The ask stage of a run: the profile's questions, answered by the base and the tuned model."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.jobs.folder import read_json
from bc250studio.jobs.progress import Progress
from bc250studio.profiles import Resolved
from bc250studio.serve import server, stage_serve
from bc250studio.serve.ask import Question, ask, questions_from, read_questions
from bc250studio.serve.talk import Talk

DEFAULT_QUESTIONS = 3


def inputs(job: JobFolder, resolved: Resolved) -> dict[str, Any]:
    """The server's files and the [ask] section."""
    described = read_json(job.path / "server.json")
    file = resolved.profile.ask.file
    return {
        "server": [described.get("process"), described.get("model"), described.get("adapter")],
        "ask": resolved.profile.ask.model_dump(mode="json"),
        "file": Path(file).stat().st_mtime_ns if file and Path(file).exists() else None,
    }


def run(job: JobFolder, resolved: Resolved, progress: Progress) -> dict[str, Any]:
    """Ask; unmet expectations make the verdict ``failed`` with exit code 1.

    Raises:
        BadInput: the prompts file is wrong.
        JobFailed: the server cannot be reached or started.
    """
    questions = questions_of(resolved)
    running = stage_serve.running(job, resolved, progress)
    wanted = resolved.profile.ask
    with ExitStack() as stack:
        base = None
        if running.adapter is None:
            base = stack.enter_context(_BaseServer(job, resolved, progress)).talk
        plan, binary = stage_serve.plan_for(job, resolved), stage_serve.binary_for(job)
        asked = ask(
            server.steady_talk(running, plan, binary),
            questions,
            wanted.max_tokens,
            wanted.temperature,
            thinking_of(resolved),
            base,
            progress,
        )
    unmet = sum(bool(one.unmet) for one in asked)
    record: dict[str, Any] = {"verdict": "done", "answers": [one.as_dict() for one in asked]}
    if any(one.question.expects for one in asked):
        expected = sum(one.question.expects for one in asked)
        record |= {"verdict": "failed" if unmet else "passed", "expected": expected, "met": expected - unmet}
        if unmet:
            record |= {"exit_code": 1, "error": f"{unmet} of {expected} answers are not as expected."}
    return record


def thinking_of(resolved: Resolved) -> bool | None:
    """The thinking switch the rows were trained with; questions are asked and chats are held with the same."""
    from bc250studio.data.thinking import served
    from bc250studio.models.find import find

    profile = resolved.profile
    try:
        return served(profile, find(profile.model.base, profile.model.revision))
    except StudioError:  # the training model was moved away; what is served needs only its GGUF
        return profile.data.thinking


def questions_of(resolved: Resolved) -> list[Question]:
    """The profile's prompts and its prompts file; without either, the first questions of the evaluation rows."""
    wanted = resolved.profile.ask
    questions = questions_from(wanted.prompts)
    if wanted.file:
        questions += read_questions(Path(wanted.file).expanduser())
    return questions or held_out(resolved, DEFAULT_QUESTIONS)


def held_out(resolved: Resolved, most: int) -> list[Question]:
    """The questions of the first evaluation rows: never trained on, so their answers are the model's own.

    Raises:
        BadInput: model or data are not where they were.
    """
    from bc250studio import data
    from bc250studio.models.find import find

    source = find(resolved.profile.model.base, resolved.profile.model.revision)
    chosen: list[Question] = []
    for chat in data.prepare(resolved.profile, source).eval_chats:
        if len(chosen) == most:
            break
        last = max((i for i, message in enumerate(chat) if message.get("role") == "user"), default=-1)
        if last >= 0 and all(isinstance(message.get("content"), str) for message in chat[: last + 1]):
            chosen.append(Question(tuple(chat[: last + 1])))
    return chosen


def offered(resolved: Resolved, most: int = 100) -> list[dict[str, str]]:
    """What a chat may begin with: the profile's own questions, its prompts file's, then those of held-out rows.

    Raises:
        BadInput: the prompts file, the model or the data cannot be read.
    """
    wanted = resolved.profile.ask
    groups = [("profile", questions_from(wanted.prompts))]
    if wanted.file:
        groups.append(("prompts file", read_questions(Path(wanted.file).expanduser())))
    groups.append(("held-out row", held_out(resolved, most)))
    found: dict[str, str] = {}
    for origin, questions in groups:
        for question in questions:
            found.setdefault(question.prompt, origin)
    return [{"text": text, "from": origin} for text, origin in list(found.items())[:most]]


class _BaseServer:
    """A second server with the base alone, for a merged run: its own server has no base any more.

    When there is no room for it the base is simply not asked, and the job says so.
    """

    def __init__(self, job: JobFolder, resolved: Resolved, progress: Progress) -> None:
        self._job, self._resolved, self._progress = job, resolved, progress
        self._folder = tempfile.TemporaryDirectory(prefix="bc250studio-base-")
        self.talk: Talk | None = None

    def __enter__(self) -> _BaseServer:
        base = (self._job.stage("export").get("outputs") or {}).get("base_gguf")
        if base:
            plan = replace(
                stage_serve.plan_for(self._job, self._resolved), model=Path(str(base)), adapter=None, port=0, slots=1
            )
            try:
                started = server.start(
                    Path(self._folder.name), plan, stage_serve.binary_for(self._job), self._progress, self._job.path
                )
                self.talk = started.talk()
            except StudioError as error:
                self._job.event("warning", f"The base model is not asked beside the merged one: {clean(error, 200)}")
        return self

    def __exit__(self, *_: object) -> None:
        server.stop_folder(Path(self._folder.name))
        self._folder.cleanup()
