"""``chat RUN``: talk to base and tuned in a plain terminal; piped lines work too."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bc250studio.cli.common import Bar, narrate
from bc250studio.errors import BadInput, StudioError, clean, nearest

HELP = """\
/base, /tuned, /both      who answers
/system TEXT              the system message (empty: none)
/thinking on|off|auto     for templates that have it; auto is as it was trained
/set NAME VALUE           temperature (0 is greedy), top_p, top_k, min_p, repeat_penalty, seed, max_tokens
/prompts                  the profile's and the held-out rows' questions; /prompts N asks one
/good                     keep the tuned answer as a row for a second round
/better TEXT              keep TEXT as the answer it should have given
/new                      forget what was said
/restart                  start the server again
/quit                     leave; the server stays"""


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``chat``."""
    parser.add_argument("target", nargs="?", default="last", help="a run, a profile, or a PEFT adapter folder")
    parser.add_argument("--base", help="the base model of an adapter folder")
    parser.add_argument("--side", choices=("base", "tuned", "both"), default="both", help="who answers")
    parser.add_argument("--system", help="a system message")
    parser.add_argument("--thinking", choices=("on", "off", "auto"), default="auto", help="for templates that have it")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--max-tokens", type=int, default=512, help="longest answer")


def run(options: argparse.Namespace) -> int:
    """Read lines until the end of input or /quit."""
    from bc250studio.serve import stage_ask, stage_serve
    from bc250studio.serve.chat import Chat
    from bc250studio.serve.talk import Sampling
    from bc250studio.serve.target import job_for

    bar = Bar()
    job, resolved = job_for(options.target, options.base, bar)
    found = stage_serve.running(job, resolved, bar)
    bar.close()
    data, as_trained = resolved.profile.data, stage_ask.thinking_of(resolved)
    chat = Chat(
        found.talk(),
        job.path,
        system=options.system if options.system is not None else data.system,
        thinking={"on": True, "off": False, "auto": as_trained}[options.thinking],
        sampling=Sampling(temperature=options.temperature),
        max_tokens=options.max_tokens,
    )
    narrate(f"{found.url} on {found.backend_words}. /help lists what you can say; Ctrl-C stops an answer.")
    if found.adapter is None:
        narrate("This run is served merged: there is no base beside it on this server.")
    return _loop(_Terminal(chat, job, resolved, options.side, as_trained))


class _Terminal:
    """The chat, who answers, and how to bring the server back."""

    def __init__(self, chat: Any, job: Any, resolved: Any, side: str, as_trained: bool | None = None) -> None:
        self.chat, self.job, self.resolved, self.side = chat, job, resolved, side
        self.as_trained = as_trained
        self.unanswered = ""
        self.questions: list[dict[str, str]] = []

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(side for side in self.chat.sides if self.side in (side, "both")) or self.chat.sides

    def answer(self, text: str) -> None:
        """One turn; both sides stream, printed one after the other as soon as they are whole."""
        from bc250studio.serve.talk import ServerGone

        try:
            self._print(self.chat.say(text, self.sides))
        except ServerGone as error:
            from bc250studio.serve import server

            found = server.read(self.job)
            why = server.death(found) if found is not None and not found.alive else clean(error)
            self.unanswered = text
            narrate(f"\nThe server is gone: {why}\nPress enter to start it again and repeat the question.")
        except StudioError as error:
            narrate(f"\n{clean(error)}")

    def _print(self, pieces: Any) -> None:
        """The first side streams live; the others are kept until it is their turn."""
        waiting = list(self.sides)
        kept = dict.fromkeys(waiting, "")
        done: dict[str, Any] = {}
        print(f"{waiting[0]}> ", end="", flush=True)
        try:
            for side, piece in pieces:
                if piece.answer is not None:
                    done[side] = piece.answer
                kept[side] += clean(piece.text)
                while waiting:
                    print(kept[waiting[0]], end="", flush=True)
                    kept[waiting[0]] = ""
                    if waiting[0] not in done:
                        break
                    self._close(done[waiting.pop(0)])
                    if waiting:
                        print(f"{waiting[0]}> ", end="", flush=True)
        except KeyboardInterrupt:
            self.chat.cancel()
            for _ in pieces:
                pass
            print(" [cancelled]", flush=True)

    @staticmethod
    def _close(answer: Any) -> None:
        from bc250studio.cli.ask import STOPS

        print(flush=True)
        narrate(f"  {answer.tokens} tokens, {answer.tokens_per_s:.1f}/s, {STOPS.get(answer.stop, answer.stop)}")

    def prompts(self, chosen: str) -> None:
        """List the questions, or ask the one of that number."""
        from bc250studio.serve import stage_ask

        if not self.questions:
            self.questions = stage_ask.offered(self.resolved)
        if not chosen:
            for i, question in enumerate(self.questions, 1):
                narrate(f"{i:>3}  {' '.join(clean(question['text']).split())}")
        elif chosen.isdigit() and 1 <= int(chosen) <= len(self.questions):
            text = self.questions[int(chosen) - 1]["text"]
            print(f"you> {clean(text)}", flush=True)
            self.answer(text)
        else:
            raise BadInput(f"/prompts takes a number from 1 to {len(self.questions)}.")

    def keep(self, better: str | None) -> None:
        """The tuned answer, or a better one, as a row for a second round."""
        from bc250studio.serve import collected

        if not self.chat.histories["tuned"] or better == "":
            raise BadInput("There is no answer of the tuned model to keep; /better takes the better answer.")
        name = str(self.job.state().get("profile") or self.job.name)
        file = collected.save(name, self.chat.row(better))
        narrate(f"Row {collected.count(name)} of {file}")
        narrate(
            f"A second round from this adapter: bc250studio run {name} --set data.path={file} "
            f"--set adapter.start_from={self.job.path}/checkpoints/final --set data.train_on=last"
        )

    def restart(self) -> None:
        """Start the server again, and repeat the question that was not answered."""
        from bc250studio.serve import stage_serve

        bar = Bar()
        found = stage_serve.running(self.job, self.resolved, bar)
        bar.close()
        self.chat.talk = found.talk()
        narrate(f"The server runs again: {found.url} on {found.backend_words}.")
        text, self.unanswered = self.unanswered, ""
        if text:
            self.answer(text)


def _loop(terminal: _Terminal) -> int:
    interactive = sys.stdin.isatty()
    while True:
        if interactive:
            print("you> ", end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            return 130
        if not line:
            return 1 if terminal.unanswered else 0
        text = line.strip()
        try:
            if text == "/quit":
                return 0
            if not text:
                if terminal.unanswered:
                    terminal.restart()
            elif text.startswith("/"):
                _command(terminal, text)
            else:
                if not interactive:
                    print(f"you> {text}", flush=True)
                terminal.answer(text)
        except StudioError as error:
            narrate(clean(error))


def _command(terminal: _Terminal, text: str) -> None:
    word, _, rest = text.partition(" ")
    chat, rest = terminal.chat, rest.strip()
    if word in ("/base", "/tuned", "/both"):
        terminal.side = word[1:]
    elif word == "/system":
        chat.system = rest or None
    elif word == "/thinking":
        if rest not in ("on", "off", "auto"):
            raise BadInput("/thinking takes on, off or auto.")
        chat.thinking = {"on": True, "off": False, "auto": terminal.as_trained}[rest]
    elif word in ("/set", "/temperature"):
        name, _, value = (f"temperature {rest}" if word == "/temperature" else rest).partition(" ")
        chat.put(name, value)
    elif word == "/prompts":
        terminal.prompts(rest)
    elif word in ("/good", "/better"):
        terminal.keep(rest if word == "/better" else None)
    elif word == "/new":
        chat.reset()
    elif word == "/restart":
        terminal.restart()
    elif word == "/help":
        narrate(HELP)
    else:
        known = [line.split()[0].strip(",") for line in HELP.splitlines()]
        raise BadInput(f"No command {clean(word)!r}.{nearest(word, known)} /help lists them.")
