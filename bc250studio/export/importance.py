"""llama.cpp's importance matrix: how much each column of a matrix matters, from a calibration text."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bc250studio.errors import BadInput, clean
from bc250studio.models.gguf_file import Tensor


@dataclass(frozen=True)
class Importance:
    """Tensor name -> weights float32 [columns] (or [experts * columns])."""

    path: Path
    values: dict[str, np.ndarray]

    @classmethod
    def read(cls, path: Path, tensors: Mapping[str, Tensor]) -> Importance:
        """Read a file of either format (GGUF or the older binary one) and check it against the model.

        Raises:
            BadInput: not an importance matrix, of another model, or with values that are not finite.
        """
        from libgguf import load_imatrix

        if not path.is_file():
            raise BadInput(f"export.imatrix = {clean(path)}: there is no such file.")
        try:
            loaded = load_imatrix(path)
        except (ValueError, KeyError, IndexError, OSError, OverflowError, MemoryError, struct.error) as error:
            raise BadInput(f"{clean(path)} is not an importance matrix of llama.cpp: {clean(error, 120)}.") from error
        values = {str(name): np.asarray(value, np.float32).reshape(-1) for name, value in loaded.items()}
        known = {name: value for name, value in values.items() if name in tensors}
        if not known:
            raise BadInput(f"{clean(path)} fits no tensor of this model; it was made for another one.")
        for name, value in known.items():
            tensor = tensors[name]
            stacked = tensor.shape[0] if len(tensor.shape) == 3 else 1
            if value.size != tensor.columns * stacked:
                if name == "token_embd.weight":
                    continue
                raise BadInput(
                    f"{clean(path)} has {value.size} weights for {clean(name, 80)}, which has "
                    f"{tensor.columns * stacked} columns; it was made for another model."
                )
            if not np.isfinite(value).all():
                raise BadInput(f"{clean(path)} holds values that are not finite numbers ({clean(name, 80)}).")
        return cls(path, known)

    def of(self, tensor: Tensor) -> np.ndarray | None:
        """Weights of a tensor, [matrices, columns], or None."""
        value = self.values.get(tensor.name)
        if value is None or value.size % tensor.columns:
            return None
        stacked = tensor.shape[0] if len(tensor.shape) == 3 else 1
        return value.reshape(stacked, tensor.columns) if value.size == stacked * tensor.columns else None
