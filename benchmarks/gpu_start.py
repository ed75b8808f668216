"""How long an engine needs to start: in a new pod, in a later pod of a job, which has its kernels, and once more there.

    PYTHONPATH=crds:trainer:operator:benchmarks python3 benchmarks/gpu_start.py --out OUT

The server is that of a run, with a random model, and the directories of compilers are those of a pod. Prints seconds
until it answers. `--device cpu --tiny` tries it without a GPU; there nothing is compiled, and so nothing is kept.
"""

import argparse
import os
import shutil
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from gpu_runs import Bench

from rljob_api import kernels
from rljob_api.reading.manifest import load
from rljob_trainer.engines import kernel_archive
from rljob_trainer.engines.command import EngineCommand, engine_command
from rljob_trainer.engines.server import EngineServer

TIMEOUT_S = 400.0


def main() -> None:
    """Start an engine three times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of two layers")
    parser.add_argument("--model", default="0.6B")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    bench = Bench(options)
    model = bench.model(options.model)
    spec = load(yaml.safe_dump(bench.job("start", model, rollout={"memoryFraction": 0.5}))).spec
    with TemporaryDirectory(prefix="kernels-") as place:
        directory = Path(place) / "kernels"
        os.environ.update(
            {name: value.replace(kernels.DIRECTORY, str(directory)) for name, value in kernels.ENVIRONMENT.items()}
        )
        os.environ["HOME"] = place  # caches that no variable moves
        command = engine_command(spec, model, 2, os.environ.get("PYTHONPATH", ""), bench.out)
        print(f"a new pod: {seconds(command, bench.out):.1f} s", flush=True)
        for each in Path(place).iterdir():
            shutil.rmtree(each)
        print(f"a new pod of the same job: {seconds(command, bench.out):.1f} s", flush=True)
        print(f"the same pod again: {seconds(command, bench.out):.1f} s", flush=True)
        if command.kernels is not None and command.kernels.exists():
            print(f"archive: {command.kernels.stat().st_size / 1e6:.1f} MB", flush=True)


def seconds(command: EngineCommand, out: Path) -> float:
    """Start an engine, wait until its kernels are kept, and stop it; return the seconds until it answered."""
    server = EngineServer("engine-0", out / "engine.log", "127.0.0.1")
    began = time.monotonic()
    try:
        server.start(command, TIMEOUT_S)
        return time.monotonic() - began
    finally:
        for thread in threading.enumerate():
            if thread.name == kernel_archive.THREAD:
                thread.join()
        server.stop()


if __name__ == "__main__":
    main()
