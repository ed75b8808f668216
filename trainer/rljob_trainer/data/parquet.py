"""Rows of a Parquet file, in order, without reading more of the file than is asked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow.parquet import ParquetFile

from rljob_trainer.data.errors import DataError


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its place; raise DataError if the file is missing or is not Parquet."""
    try:
        with ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1024):
                for raw in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", raw
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
