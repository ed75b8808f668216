"""Reads the GPUs of this machine as a run does, idle and under load.

    PYTHONPATH=trainer python benchmarks/gpu_telemetry.py --xid

It needs nvidia-ml-py, and torch for the load; without torch it only reads. `--xid` makes one process access illegal
memory by a Triton kernel, and fails unless the reader reports an Xid error. One line of JSON for each look.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict

import pynvml

from rljob_trainer.gpus.nvml import NvmlReader
from rljob_trainer.gpus.readings import Gathered, names_of

LOAD = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
end = time.time() + {seconds}
while time.time() < end:
    for _ in range(50):
        b = a @ a
    torch.cuda.synchronize()
"""
ILLEGAL = """
import torch, triton, triton.language as tl
@triton.jit
def write(p, far):
    tl.store(p + far, 1.0)
write[(1,)](torch.zeros(1, device="cuda"), 1 << 44)
torch.cuda.synchronize()
"""


def main(arguments: Sequence[str]) -> int:
    """Return 0 if all that was asked for was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="of load")
    parser.add_argument("--xid", action="store_true", help="provoke an Xid error in a process of its own")
    options = parser.parse_args(arguments)
    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    reader, gathered = NvmlReader("here", names_of(None, count), pynvml), Gathered()
    missing = [] if count else ["GPUs"]
    look(reader, gathered, "idle")
    gathered.take()
    if importlib.util.find_spec("torch"):
        missing += under_load(reader, gathered, options.seconds)
    if options.xid:
        missing += after_illegal_access(reader, gathered)
    write({"missing": missing})
    return 1 if missing else 0


def under_load(reader: NvmlReader, gathered: Gathered, seconds: int) -> list[str]:
    """Return what the first GPU should have shown under load and did not."""
    with subprocess.Popen([sys.executable, "-c", LOAD.format(seconds=seconds)], stdout=subprocess.PIPE) as load:
        assert load.stdout is not None
        load.stdout.readline()
        while load.poll() is None:
            time.sleep(1.0)
            look(reader, gathered, "load")
    use = gathered.take()["here:0"]
    write({"step": asdict(use)})
    seen = {
        "utilisation": use.utilisation is not None and use.utilisation > 0.3,
        "memory": (use.memory_bytes or 0) > 1 << 27,
        "power": (use.power_watts or 0) > 0,
        "temperature": (use.temperature or 0) > 0,
    }
    return [name for name, there in seen.items() if not there]


def after_illegal_access(reader: NvmlReader, gathered: Gathered) -> list[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # Triton reads the source of its kernels
        file.write(ILLEGAL)
        file.flush()
        failed = subprocess.run([sys.executable, file.name], check=False, capture_output=True, text=True)
    write({"process": failed.returncode, "last line": (failed.stderr.strip().splitlines() or [""])[-1]})
    time.sleep(2.0)
    look(reader, gathered, "after")
    return [] if gathered.take()["here:0"].xids else ["Xid"]


def look(reader: NvmlReader, gathered: Gathered, when: str) -> None:
    began = time.monotonic()
    looked = reader.look()
    write({"when": when, "look_ms": round(1000 * (time.monotonic() - began), 2), **asdict(looked)})
    gathered.add(looked)


def write(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
