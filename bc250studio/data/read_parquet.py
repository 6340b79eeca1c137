"""Read .parquet a batch at a time, so that memory does not follow the file's size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bc250studio.data.raw import Raw
from bc250studio.errors import BadInput, clean

_BATCH_ROWS = 256


def read_parquet(path: Path) -> Iterator[Raw]:
    """Rows as dicts; structs are dicts, lists are lists.

    Raises:
        BadInput: not a parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as parquet: {clean(error, 160)}.") from error
    number = 0
    try:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            for value in _rows(batch):
                number += 1
                yield Raw(number, value, None if value is not None else "not text: a value that is not UTF-8")
    except (pa.ArrowException, OSError, ValueError) as error:
        yield Raw(number + 1, None, f"broken parquet: {clean(error, 120)}")
    finally:
        file.close()


def _rows(batch) -> list[dict | None]:  # type: ignore[no-untyped-def, type-arg]
    try:
        return batch.to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError):
        rows: list[dict | None] = []  # type: ignore[type-arg]
        for index in range(batch.num_rows):
            try:
                rows.extend(batch.slice(index, 1).to_pylist())
            except (UnicodeDecodeError, ValueError, OverflowError):
                rows.append(None)
        return rows
