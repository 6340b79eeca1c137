"""From float32 to ggml's number types, and the names people use for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bc250studio.errors import BadInput
from bc250studio.models.gguf_file import row_bytes

F32, F16, Q8_0, BF16 = 0, 1, 8, 30
ADAPTER_TYPES = {"f32": F32, "f16": F16, "bf16": BF16, "q8_0": Q8_0}
FILE_TYPE = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}
"""llama.cpp's number for a whole file (``general.file_type``)."""


def encode(rows: np.ndarray, kind: int, importance: np.ndarray | None = None) -> np.ndarray:
    """``rows`` float32 [n, columns] as bytes of ggml type ``kind``: uint8 [n, bytes of a row].

    ``importance`` float32 [columns] weighs the columns (llama.cpp's importance matrix). The quantisers are the
    reference ones of libgguf: the same bytes as llama.cpp's.

    Raises:
        BadInput: a value is too large for f16.
    """
    import libgguf

    rows = np.ascontiguousarray(rows, np.float32)
    if kind == F32:
        return rows.view(np.uint8)
    if kind == F16:
        with np.errstate(over="ignore"):
            half = rows.astype(np.float16)
        if not np.isfinite(half).all():
            raise BadInput("Values over 65,504 do not fit into f16; choose f32 or bf16.")
        return half.view(np.uint8)
    size = row_bytes(kind, rows.shape[-1])
    arguments: dict[str, Any] = {} if importance is None or kind == BF16 else {"imatrix": importance}
    packed = np.asarray(libgguf.quantize_rows(rows, kind, **arguments))
    return packed.reshape(-1).view(np.uint8).reshape(rows.shape[0], size)
