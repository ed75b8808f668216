"""How long an engine and a learner need to start: in a new pod, in a later pod of the job, which has the kernels that
were kept, and once more there.

    PYTHONPATH=crds:trainer:operator:benchmarks python3 benchmarks/gpu_start.py --out OUT

Both are those of a run, with a random model, and the directories of compilers are those of a pod. Prints seconds until
the engine answers, and seconds of the learner's first steps (32 samples of 64 to 8,192 tokens). `--device cpu --tiny`
tries it without a GPU; there no engine compiles, so none of its kernels are kept.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from gpu_runs import Bench

from rljob_api import kernels
from rljob_api.control import TOKEN_VARIABLE
from rljob_api.reading.manifest import load
from rljob_trainer.engines.actor.server import EngineServer
from rljob_trainer.engines.command import EngineCommand, engine_command
from rljob_trainer.processes.kernel_archive import NAME, THREAD, KeptKernels

TIMEOUT_S = 400.0
STEPS = 3
STARTS = ("a new pod", "a later pod of the job", "the same pod again")


def main() -> None:
    """Start what was asked for three times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of two layers")
    parser.add_argument("--model", default="0.6B")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--what", nargs="+", choices=("engine", "learner"), default=["engine", "learner"])
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)  # the learner, in its own
    options = parser.parse_args()
    if options.in_process:
        print(json.dumps(first_steps(options)))
        return
    with TemporaryDirectory(prefix="kernels-") as place:
        directory = Path(place) / "kernels"
        os.environ.update(
            {name: value.replace(kernels.DIRECTORY, str(directory)) for name, value in kernels.ENVIRONMENT.items()}
        )
        os.environ.setdefault(TOKEN_VARIABLE, "of this benchmark")  # pods keep kernels by a key that is made of it
        os.environ["HOME"] = place  # caches that no variable moves
        starts: dict[str, Callable[[], str]] = {
            "engine": lambda: engine(options),
            "learner": lambda: learner(options, directory),
        }
        for what in options.what:
            for start in STARTS:
                if start != STARTS[2]:
                    for each in Path(place).iterdir():
                        shutil.rmtree(each)
                print(f"{what}, {start}: {starts[what]()}", flush=True)
        for archive in sorted(options.out.glob("kernels/*.tar")):
            print(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB", flush=True)


def engine(options: argparse.Namespace) -> str:
    """Start an engine; say after how many seconds it answered."""
    bench = Bench(options)
    model = bench.model(options.model)
    spec = load(yaml.safe_dump(bench.job("start", model, rollout={"memoryFraction": 0.5}))).spec
    return f"{answered(engine_command(spec, model, 2, os.environ.get('PYTHONPATH', ''), bench.out), bench.out):.1f} s"


def answered(command: EngineCommand, out: Path) -> float:
    """Start an engine, wait until its kernels are kept, and stop it; return the seconds until it answered."""
    server = EngineServer("engine-0", out / "engine.log", "127.0.0.1")
    began = time.monotonic()
    try:
        server.start(command, TIMEOUT_S)
        return time.monotonic() - began
    finally:
        for thread in threading.enumerate():
            if thread.name == THREAD:
                thread.join()
        server.stop()


def learner(options: argparse.Namespace, directory: Path) -> str:
    """Take a learner's first steps in a process of its own, and keep its kernels; say how long each took."""
    archive = options.out.resolve() / NAME
    KeptKernels(directory, archive).unpack()
    done = subprocess.run(
        [sys.executable, *sys.argv, "--in-process"], stdout=subprocess.PIPE, text=True, check=True, env=os.environ
    )
    KeptKernels(directory, archive).pack()
    loaded, *steps = json.loads(done.stdout.splitlines()[-1])
    return f"loaded after {loaded:.1f} s, steps of " + ", ".join(f"{step:.2f} s" for step in steps)


def first_steps(options: argparse.Namespace) -> list[float]:
    """Return the seconds until a learner is there, and those of its first steps."""
    began = time.monotonic()
    import torch
    from learner_gpu import SHAPES, TINY, Case, loads, ours, write_checkpoint

    torch.set_num_threads(2)
    load_ = loads(64 if options.tiny else 1)["mixed"]
    shape = TINY if options.tiny else SHAPES[options.model]
    checkpoint = options.out.resolve() / f"model-{options.model}"
    write_checkpoint(checkpoint, shape, options.device)
    step = ours(Case(checkpoint, shape, options.device, load_.samples(shape["vocab_size"])))
    seconds = [time.monotonic() - began]
    for _ in range(STEPS):
        began = time.monotonic()
        step()
        if options.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
    return seconds


if __name__ == "__main__":
    main()
