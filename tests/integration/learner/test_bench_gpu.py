"""`make bench-gpu` without a GPU: two layers, short samples, every step real."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "learner_gpu.py"
DRY = (sys.executable, str(BENCHMARK), "--device", "cpu", "--tiny", "--loads", "mixed", "--rows")


def bench(out: Path, *rows: str) -> str:
    return subprocess.run([*DRY, *rows, "--out", str(out)], check=True, capture_output=True, text=True).stdout


def test_each_row_is_measured_once_and_both_files_have_it(tmp_path: Path) -> None:
    first = bench(tmp_path, "ours", "transformers")
    figures = json.loads((tmp_path / "learner.json").read_text())
    assert list(figures) == ["mixed/ours", "mixed/transformers"]
    assert all(row["ms"] > 0 and row["tokens per second"] > 0 for row in figures.values())
    assert bench(tmp_path, "ours", "transformers") == first  # nothing is measured again
    assert (tmp_path / "learner.md").read_text() == first
    assert first.count("\n") == 2 + 2
