"""A process that decodes a foreign Parquet file: `python -m rljob_trainer.data.parquet_trial FILE ROWS`.

`parquet.py` starts it. It writes the number of each row group that it begins, and behind it what is wrong with one; it
may die of one.
"""

import sys
from pathlib import Path

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.parquet import batches, limit_process


def main(path: Path, limit: int | None) -> None:
    """Decode the first rows of the file; none is kept."""
    group = 0

    def begun(number: int) -> None:
        nonlocal group
        group = number
        print(number, flush=True)  # noqa: T201  # it is the answer

    try:
        limit_process(path)
        for _ in batches(path, limit, begun):
            pass
    except (DataError, OSError) as error:
        print(group, error, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2] else None)
