"""Mutates one package in a copy of the checkout, and reports the mutants that its unit tests miss.

    python tests/mutants rljob_trainer.engines.lifecycle --sample 200 --seed 1 --workers 2

mutmut makes the mutants, finds the tests that reach each one, and forks a process per mutant. This package adds three
source roots, samples, and a list of survivors that are accepted with a reason (`accepted.yaml`). `at_import.py` judges
packages that build their values when they are imported.
"""

import argparse
import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import at_import
from accepted import ACCEPTED, read
from report import Outcome, outcomes, summary
from workspace import Workspace, lay_out, mutant_names, target

REPOSITORY = Path(__file__).resolve().parents[2]
SPINNER = re.compile(r"[\r\n][\u2800-\u28ff] [^\r\n]*")


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    accepted = [entry for entry in read(REPOSITORY / ACCEPTED) if _within(entry.module, options.package)]
    chosen = target(REPOSITORY, options.package, options.tests)
    built_at_import = any(_within(options.package, package) for package in at_import.PACKAGES)
    if not built_at_import:
        chosen = at_import.without(chosen)
    with tempfile.TemporaryDirectory(prefix="rljob-mutants-") as directory:
        workspace = lay_out(REPOSITORY, chosen, Path(directory))
        with contextlib.chdir(workspace.root):  # mutmut reads its settings and writes its results where it runs
            mutants: Sequence = at_import.edits(workspace) if built_at_import else mutant_names(workspace)
            size = min(options.sample or len(mutants), len(mutants))
            drawn = [mutants[n] for n in sorted(random.Random(options.seed).sample(range(len(mutants)), size))]
            print(f"{options.package}: {size} of {len(mutants)} mutants; tests: {' '.join(chosen.tests)}", flush=True)
            if built_at_import:
                found = at_import.judge(workspace, drawn, options.verbose)
            else:
                _run(workspace, drawn, options.workers, options.verbose)
                found = outcomes(workspace, drawn)
    print(summary(found, accepted, whole=size == len(mutants)))
    return 0 if all(outcome is not Outcome.UNKNOWN for _, outcome in found) else 1


def _within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def _run(workspace: Workspace, names: Sequence[str], workers: int, verbose: bool) -> None:
    """Raise SystemExit when the tests fail without a mutant, or when a mutant cannot fail them."""
    run = subprocess.run(
        [Path(sys.executable).parent / "mutmut", "run", "--max-children", str(workers), *names],
        env=workspace.environment(os.environ),
        stdout=None if verbose else subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SystemExit(f"{SPINNER.sub('', run.stdout or '')}\nmutmut exited with {run.returncode}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests/mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("package", help="package or module, such as rljob_api.sizing or rljob_trainer.engines.pool")
    parser.add_argument("--tests", nargs="*", help="instead of the folder of tests that mirrors the package")
    parser.add_argument("--sample", type=int, help="mutants to draw at random; without it, all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--workers", type=int, default=2, help="processes at once")
    parser.add_argument("--verbose", action="store_true", help="show mutmut's own output")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
