"""Why a llama-server died, in words: its log and its exit code against what is known to kill servers."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from bc250studio.errors import clean

TAIL_BYTES = 64 * 1024

# Pattern in the log -> what happened and what to do. The first that fits wins, so the specific stand first.
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"ErrorDeviceLost|device ?lost|DeviceLost|GPU ?hang|ring \w+ timeout",
        "the GPU was lost while computing; see dmesg, lower serve.batch or the clock, and start again",
    ),
    (
        r"ErrorOutOf(Device|Host)Memory|out of memory|failed to allocate|unable to allocate|cannot allocate memory|"
        r"bad_alloc|alloc_tensor_range: failed|ggml_backend_alloc|exceeds? (the )?device|not enough (memory|space)",
        "it ran out of memory; lower serve.context, use a smaller quantisation, or free memory first",
    ),
    (
        r"unknown model architecture: ?'?([\w.-]*)",
        "this llama-server does not know the model's architecture{0}; a newer build is needed",
    ),
    (
        r"error loading model architecture|missing tensor '([^']*)'|wrong number of tensors|tensor '([^']*)' has wrong shape",
        "the model file does not fit its architecture{0}; it was written wrongly or by a newer converter",
    ),
    (
        r"unknown pre-tokenizer type: ?'?([\w.-]*)",
        "this llama-server does not know the model's tokenizer{0}; a newer build is needed",
    ),
    (
        r"data is not within the file bounds|not within file bounds|model is corrupted or incomplete|unexpectedly reached end of file|"
        r"failed to read (magic|tensor|key)|invalid magic|bad magic|invalid ggu?f|gguf_init_from_\w+: failed|read error",
        "a model file is truncated or damaged; export it (or fetch it) again",
    ),
    (
        r"LoRA tensor '([^']*)' has unexpected|has incorrect shape|does not exist in base model|model arch and LoRA arch mismatch|"
        r"lora architecture mismatch|LoRA tensor '([^']*)'",
        "the adapter does not fit this base model{0}; it belongs to another one",
    ),
    (r"failed to (load|apply) lora adapter|failed to load LoRA", "the adapter file could not be loaded"),
    (
        r"(jinja|chat template|template).*(error|exception|fail|not supported|unexpected)|"
        r"Unable to generate parser|common_chat_templates_init: error|(error|exception|fail)\w*.*chat[_ ]template",
        "llama-server cannot read the model's chat template",
    ),
    (
        r"couldn't bind|failed to bind|address already in use|bind HTTP server socket",
        "its port was taken by another program in the meantime; start it again",
    ),
    (
        r"invalid device|invalid value for .*device|unknown device",
        "llama-server does not have the device that was asked for",
    ),
    (r"error: (unknown|invalid) argument:? ?(\S*)", "this llama-server does not know an option{0}"),
    (r"failed to open (?:GGUF file )?'?([^'\n]*)|No such file", "a file is missing{0}"),
    (r"no backends are loaded|no usable GPU found", "llama-server found no device to compute on"),
)
_SIGNALS = {
    signal.SIGILL: "its build uses instructions this CPU does not have (AVX-512 or AMX perhaps); use another build of llama.cpp",
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


def cause(text: str, code: int | None) -> str:
    """Half a sentence that says why, from the log's ``text`` and the exit ``code`` (None when unknown).

    A negative code is a signal, as subprocess gives it.
    """
    for pattern, words in _CAUSES:
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            named = next((group for group in match.groups()[::-1] if group and len(group) > 1), "")
            return words.format(f" ({clean(named, 80)})" if named else "")
    if "AMX is not ready" in text.rstrip().splitlines()[-1:]:
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
