"""Why a llama-server died, in words: its log and its exit code against what is known to kill servers."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from bc250studio.errors import clean

TAIL_BYTES = 64 * 1024

# Patterns in the log -> what happened and what to do. The first that fits wins, so the specific stand first.
_CAUSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("ErrorDeviceLost", "device ?lost", "GPU ?hang", r"ring \w+ timeout"),
        "the GPU was lost while computing; see dmesg, lower serve.batch or the clock, and start again",
    ),
    (
        (
            "ErrorOutOf(Device|Host)Memory",
            "out of memory",
            "(failed|unable) to allocate",
            "cannot allocate memory",
            "bad_alloc",
            "alloc_tensor_range: failed",
            "exceeds? (the )?device",
            "not enough (memory|space)",
        ),
        "it ran out of memory; lower serve.context, use a smaller quantisation, or free memory first",
    ),
    (
        (r"unknown model architecture: ?'?([\w.-]*)",),
        "this llama-server does not know the model's architecture{0}; a newer build is needed",
    ),
    (
        (r"unknown pre-tokenizer type: ?'?([\w.-]*)",),
        "this llama-server does not know the model's tokenizer{0}; a newer build is needed",
    ),
    (
        (
            "data is not within the file bounds",
            "model is corrupted or incomplete",
            "unexpectedly reached end of file",
            "failed to read (magic|tensor|key)",
            "(invalid|bad) magic",
            r"gguf_init_from_\w+: failed",
            "read error",
        ),
        "a model file is truncated or damaged; export it (or fetch it) again",
    ),
    (
        (
            "error loading model architecture",
            "missing tensor '([^']*)'",
            "wrong number of tensors",
            "tensor '([^']*)' has wrong shape",
        ),
        "the model file does not fit its architecture{0}; it was written wrongly or by a newer converter",
    ),
    (
        (
            "LoRA tensor '([^']*)'",
            "has incorrect shape",
            "does not exist in base model",
            "model arch and LoRA arch mismatch",
            "lora architecture mismatch",
        ),
        "the adapter does not fit this base model{0}; it belongs to another one",
    ),
    (("failed to (load|apply) lora",), "the adapter file could not be loaded"),
    (
        (
            "(jinja|template).*(error|exception|fail|not supported|unexpected)",
            "unable to generate parser",
            r"(error|exception|fail)\w*.*chat[_ ]template",
        ),
        "llama-server cannot read the model's chat template",
    ),
    (
        ("couldn't bind", "failed to bind", "address already in use", "bind HTTP server socket"),
        "its port was taken by another program in the meantime; start it again",
    ),
    (
        ("(invalid|unknown) device", "invalid value for .*device"),
        "llama-server does not have the device that was asked for",
    ),
    ((r"error: (?:unknown|invalid) argument:? ?(\S*)",), "this llama-server does not know an option{0}"),
    ((r"failed to open (?:GGUF file )?'?([^'\n]*)", "No such file"), "a file is missing{0}"),
    (("no backends are loaded", "no usable GPU found"), "llama-server found no device to compute on"),
    (
        ("corrupted size vs", "double free or corruption", "malloc\\(\\)", r"free\(\)"),
        "it crashed inside its own or the driver's code (broken heap)",
    ),
)
_SIGNALS = {
    signal.SIGILL: (
        "its build uses instructions this CPU does not have (AVX-512 or AMX, perhaps); use another build of llama.cpp"
    ),
    signal.SIGKILL: "it was killed (kill -9, or the kernel when memory ran out; see dmesg)",
    signal.SIGSEGV: "it crashed (segmentation fault)",
    signal.SIGABRT: "it gave up (abort)",
    signal.SIGBUS: "it crashed reading a file (bus error); the file was changed or cut while it was served",
    signal.SIGTERM: "somebody ended it",
    signal.SIGINT: "somebody ended it",
}


def tail(log: Path) -> str:
    """The end of a log as clean text; empty when it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return clean(file.read().decode("utf-8", "replace"))
    except OSError:
        return ""


def head(log: Path, size_bytes: int = 1 << 20) -> str:
    """The beginning of a log, where loading is told; empty when it cannot be read."""
    try:
        with log.open("rb") as file:
            return clean(file.read(size_bytes).decode("utf-8", "replace"))
    except OSError:
        return ""


def cause(text: str, code: int | None) -> str:
    """Half a sentence that says why, from the log's ``text`` and the exit ``code`` (None when unknown).

    A negative code is a signal, as subprocess gives it.
    """
    for patterns, words in _CAUSES:
        for pattern in patterns:
            match = re.search(pattern, text, re.IGNORECASE)
            if match:
                named = next((group for group in match.groups() if group and "{0}" in words), "")
                return words.format(f" ({clean(named, 80)})" if named else "")
    if "AMX is not ready to be used!" in text.rstrip().splitlines()[-1:]:
        return _SIGNALS[signal.SIGILL]
    if code is not None and code < 0:
        try:
            number = signal.Signals(-code)
        except ValueError:
            return f"it died of signal {-code}"
        return _SIGNALS.get(number, f"it died of {number.name}")
    if code is None:
        return "it is gone, without a word in its log"
    return f"it ended with exit code {code}"


def obituary(log: Path, code: int | None) -> str:
    """The cause, the last telling lines and where the log is: ready to stand after ``llama-server died: ``."""
    text = tail(log)
    return f"{cause(text, code)}. {_last_lines(text)}Log: {log}"


def _last_lines(text: str, count: int = 2) -> str:
    lines = [re.sub(r"^[\d.]+ [A-Z] +", "", line.strip()) for line in text.splitlines() if line.strip()]
    telling = [
        line for line in lines if re.search(r"error|fail|unable|cannot|exception|abort|lost", line, re.IGNORECASE)
    ]
    chosen = (telling or lines)[-count:]
    return f"Last lines: {' | '.join(clean(line, 200) for line in chosen)}. " if chosen else ""
