"""The command line: one module per noun, imported only when its noun is typed.

stdout is data (``--json``), stderr is narration. Exit codes: 0 done, 1 the job failed, 2 bad input or
usage, 3 a proof failed, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

NOUNS: dict[str, tuple[str, str]] = {
    "app": ("bc250studio.cli.app", "the app (also without any word)"),
    "run": ("bc250studio.cli.run", "train, export, serve, prove and ask, from a profile"),
    "rehearse": ("bc250studio.cli.rehearse", "everything in two steps, before a long run"),
    "train": ("bc250studio.cli.train", "only train a profile"),
    "export": ("bc250studio.cli.export", "adapter or merged GGUF of a run or an adapter folder"),
    "serve": ("bc250studio.cli.serve", "start llama-server with what was trained"),
    "prove": ("bc250studio.cli.prove", "show that what answers is what was trained"),
    "ask": ("bc250studio.cli.ask", "put questions to the base and the tuned model"),
    "chat": ("bc250studio.cli.chat", "talk to the base and the tuned model"),
    "runs": ("bc250studio.cli.runs", "list runs"),
    "status": ("bc250studio.cli.status", "how a run stands"),
    "attach": ("bc250studio.cli.attach", "follow a run until it ends"),
    "logs": ("bc250studio.cli.logs", "a run's events and logs"),
    "pause": ("bc250studio.cli.control", "pause a run between two steps"),
    "resume": ("bc250studio.cli.control", "go on with a paused, stopped or broken run"),
    "stop": ("bc250studio.cli.control", "stop a run (or its server)"),
    "checkpoint": ("bc250studio.cli.control", "write a checkpoint now"),
    "peek": ("bc250studio.cli.peek", "stop a run for a chat with its checkpoint, then go on"),
    "queue": ("bc250studio.cli.queue", "several profiles, one after the other"),
    "compare": ("bc250studio.cli.compare", "two runs side by side"),
    "report": ("bc250studio.cli.report", "what a run came to, on one page"),
    "data": ("bc250studio.cli.data", "check and preview a dataset"),
    "models": ("bc250studio.cli.models", "list, show, fit or get models"),
    "profiles": ("bc250studio.cli.profiles", "list, show, make or save profiles"),
    "bench": ("bc250studio.cli.bench", "measure training, steps, products, memory, serving"),
    "kernels": ("bc250studio.cli.kernels", "tuned matrix kernels"),
    "doctor": ("bc250studio.cli.doctor", "is this machine fit, and what would fix it"),
    "paths": ("bc250studio.cli.paths", "where things are"),
    "settings": ("bc250studio.cli.settings", "what this machine has"),
    "web": ("bc250studio.cli.web", "the app in a browser, on loopback"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``bc250studio``."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in ("--version", "-V"):
        from bc250studio import __version__

        print(f"bc250studio {__version__}")
        return 0
    if words and words[0] in ("--help", "-h", "help"):
        print(_usage())
        return 0
    if not words or words[0].startswith("-"):
        words.insert(0, "app")
    return _dispatch(words[0], words[1:])


def _dispatch(noun: str, words: list[str]) -> int:
    from bc250studio.errors import StudioError, clean, nearest

    if noun not in NOUNS:
        print(
            f"bc250studio has no command {clean(noun)!r}.{nearest(noun, NOUNS)} See: bc250studio --help",
            file=sys.stderr,
        )
        return 2
    import argparse
    import importlib

    module = importlib.import_module(NOUNS[noun][0])
    parser = argparse.ArgumentParser(prog=f"bc250studio {noun}", description=NOUNS[noun][1], allow_abbrev=False)
    parser.set_defaults(noun=noun)
    module.add(parser)
    options = parser.parse_args(words)
    try:
        return int(module.run(options))
    except StudioError as error:
        print(f"bc250studio: {clean(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _usage() -> str:
    from importlib.util import find_spec

    lines = ["usage: bc250studio [COMMAND] ...", "", "Without a command the app opens.", ""]
    lines += [f"  {noun:<11} {text}" for noun, (module, text) in NOUNS.items() if find_spec(module)]
    return "\n".join([*lines, "", "bc250studio COMMAND --help says more."])


if __name__ == "__main__":
    sys.exit(main())
