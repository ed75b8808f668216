"""Publications of what has changed beside whole ones, for `docs/performance.md`: bytes, and seconds of the transfer.

    python benchmarks/delta_sync.py --directory /tmp/deltas

Runs the quickstart in fp32 and in bf16, without evaluations, for 20 steps. After each step the weights go to the engine
by each transport in turns: gloo, a file on the disk, what has changed. `rljob run` does the rest: prompts, rollouts,
rewards, optimizer steps, and the verification of every tensor.
"""

import argparse
import logging
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import yaml
from rich.console import Console

from rljob_api.reading.manifest import load
from rljob_cli.run.run import run
from rljob_cli.terminal.display import display_for
from rljob_cli.terminal.panels import run_facts
from rljob_trainer import driver
from rljob_trainer.assembly.learning import Learner
from rljob_trainer.engines.client import EngineClient
from rljob_trainer.processes import leftovers
from rljob_trainer.sync.learner_link import LearnerLink
from rljob_trainer.sync.publisher import Transport
from rljob_trainer.sync.rank_calls import WritingRank
from rljob_trainer.sync.transport import Broadcast, Delta, Disk, Receiver, Transfer

QUICKSTART = Path(__file__).parents[1] / "docs/examples/quickstart.yaml"
STEPS = 20
WAYS = ("Broadcast", "Disk", "Delta")
TIMED = re.compile(r"action=way way=(\w+) seconds=([\d.]+)")
OFFERED = re.compile(r"action=offer seconds=([\d.]+) whole_bytes=(\d+) delta_bytes=(\d+)")
LINKS = (("1 Gb/s", 125e6), ("100 Mb/s", 12.5e6))
"""[bytes/s]"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InTurns:
    """Brings the weights to engines by one transport after the other."""

    ways: Mapping[str, Transport]

    async def transfer(self, engines: Sequence[EngineClient], timeout_s: float) -> Transfer:
        """Return what the last transport has brought about."""
        for name, way in self.ways.items():
            began = time.perf_counter()
            found = await way.transfer(engines, timeout_s)
            log.info("action=way way=%s seconds=%.4f", name, time.perf_counter() - began)
        return found


def in_turns(learner: Learner, receivers: Mapping[str, Receiver]) -> Transport:
    """Stand in for `Learner.transport`."""
    link, specs = LearnerLink(learner.group), learner.group.call(WritingRank.weight_specs)[0]
    directory, copy = learner.foundation.directory, leftovers.shared_memory(learner.foundation.run_id) / "copy"
    ways: Mapping[str, Transport] = {
        "Broadcast": Broadcast(link, specs, "gloo", 1, 512 * 2**20),
        "Disk": Disk(link, directory / "weights"),
        "Delta": Delta(link, directory / "deltas", copy, receivers),
    }
    return InTurns(ways)


def main() -> int:
    """Print the tables; or, with --manifest, be the driver of a run."""
    if "--manifest" in sys.argv:
        with patch.object(Learner, "transport", in_turns):
            return driver.main(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="of the runs; on a disk")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--prompts", type=int, default=16, help="of a step")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    for precision in options.precisions:
        job = options.directory / f"{precision}.yaml"
        job.write_text(yaml.safe_dump(manifest(precision, options.prompts, options.directory / precision)))
        facts = run_facts(load(job.read_text()), options.directory / precision)
        with display_for(facts, Console(stderr=True)) as display:
            code = run(job, display, (sys.executable, str(Path(__file__).resolve())))
        if code:
            return code
        text = "".join(path.read_text() for path in sorted((options.directory / precision).glob("logs/driver*")))
        sys.stdout.write("\n".join(table(precision, text)) + "\n\n")
    return 0


def manifest(precision: str, prompts: int, directory: Path) -> dict[str, Any]:
    """Return the quickstart, with nothing between its steps."""
    job: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    job["metadata"]["name"] = f"delta-{precision}"
    spec = job["spec"]
    del spec["data"]["heldOut"], spec["evaluation"]
    spec["rollout"]["promptsPerStep"] = prompts
    spec["training"] |= {"steps": STEPS, "precision": precision}
    spec["checkpoint"] = {"directory": str(directory), "interval": STEPS}
    return job


def table(precision: str, text: str) -> list[str]:
    """Return the figures of the steps in a run's log; the publication before the first step does not count."""
    seconds = {way: [float(took) for name, took in TIMED.findall(text) if name == way][1:] for way in WAYS}
    offers = [(float(took), int(whole), int(delta)) for took, whole, delta in OFFERED.findall(text)]
    deltas = [delta for _, _, delta in offers]
    whole = offers[0][1]
    lines = [
        f"{precision}: {len(offers)} steps; whole {whole / 1e6:.1f} MB; delta of the first step"
        f" {deltas[0] / 1e6:.2f} MB, of the last {deltas[-1] / 1e6:.2f} MB; written in"
        f" {spread([took for took, _, _ in offers])} s",
        "",
        "| transport | bytes [MB] | of the whole | seconds |" + "".join(f" at {name} [s] |" for name, _ in LINKS),
        "|---|---|---|---|" + "---|" * len(LINKS),
    ]
    for way in WAYS:
        sizes = deltas if way == "Delta" else [whole] * len(offers)
        pairs = list(zip(seconds[way], sizes, strict=True))
        cells = [
            f"`{way}`",
            spread([size / 1e6 for size in sizes]),
            f"{median(sizes) / whole:.3f}",
            spread(seconds[way]),
        ]
        cells += [f"{median(took + size / rate for took, size in pairs):.1f}" for _, rate in LINKS]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def spread(values: Sequence[float]) -> str:
    """Return the median, with the smallest and the largest."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
