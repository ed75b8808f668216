"""Builds a release part by part, and says of each what was made, what it lacks, or why it failed."""

import argparse
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from release import steps
from release.steps import FailedError, MissingError, Release

ROOT: Final = Path(__file__).parents[2]
Part = Callable[[Release], list[Path]]
PARTS: Final[Mapping[str, Part]] = {
    "wheel, sdist": steps.python_packages,
    "kubectl plugin": steps.kubectl_plugin,
    "chart": steps.chart,
    "images": steps.images,
    "SBOM": steps.bills_of_materials,
    "provenance": steps.statement,
    "sums": steps.sums,
    "signature": steps.signature,
}
"""in their order: the later ones are about the files of the earlier ones"""
FAILED: Final = 1
INCOMPLETE: Final = 3


def main() -> None:
    """Build it; exits with 1 if a part failed, and with `--complete` with 3 if one is missing."""
    asked = arguments(sys.argv[1:])
    chosen = tuple(steps.IMAGES) if asked.images == ["all"] else tuple(each for each in asked.images if each != "none")
    url = asked.url or f"https://rljob.dev/releases/v{steps.version(ROOT)}"
    release = Release(ROOT, asked.dist, asked.uv, asked.helm, url, chosen, asked.push, datetime.now(UTC))
    release.dist.mkdir(exist_ok=True)
    sys.exit(built(release, PARTS, complete=asked.complete))


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="directory of the files")
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--helm", default="helm")
    parser.add_argument("--url", default="", help="where the files will be published")
    parser.add_argument("--images", nargs="*", default=["all"], choices=["all", "none", *steps.IMAGES])
    parser.add_argument("--push", default="", metavar="REGISTRY", help="push images and chart there")
    parser.add_argument("--complete", action="store_true", help=f"exit with {INCOMPLETE} if a part is missing")
    return parser.parse_args(words)


def built(release: Release, parts: Mapping[str, Part], *, complete: bool) -> int:
    """Build all parts and return the exit code."""
    missing = failed = False
    for name, make in parts.items():
        try:
            said = " ".join(file.name for file in make(release))
        except MissingError as error:
            missing, said = True, f"missing: {error}"
        except FailedError as error:
            failed, said = True, f"failed: {error}"
        sys.stdout.write(f"{name:<15} {said}\n")
        sys.stdout.flush()
    return FAILED if failed else INCOMPLETE if complete and missing else 0


if __name__ == "__main__":
    main()
