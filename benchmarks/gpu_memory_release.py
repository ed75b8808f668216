"""Whether an engine survives giving its memory back at once, on a GPU that other processes keep busy.

    PYTHONPATH=crds:trainer python3 benchmarks/gpu_memory_release.py MODEL [--cycles 150]

Each cycle asks for 256 short responses, releases the memory of the KV cache when the last one is there, and takes it
again. Rows: SGLang as it is; asked to flush its cache first, which waits until it is idle; and this with the plugin of
`rljob_trainer/engines/inside/gpu`, as in a run. Needs one GPU of NVIDIA.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

from rljob_trainer.engines.command import GPU_SITE

AS_IT_IS = "as-it-is"
ROWS = (AS_IT_IS, "flushed", "with-plugin")
PORT = 31990
START_S = 240.0
NEIGHBOURS = 3
BUSY = """
import torch
matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(20):
        matrix @ matrix
    torch.cuda.synchronize()
"""


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cycles", type=int, default=150)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    options = parser.parse_args()
    neighbours = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(NEIGHBOURS)]
    try:
        for row in options.rows:
            done, error, seconds = survived(options.model, options.cycles, row)
            result = "survived" if not error else f"ended: {error}"
            sys.stdout.write(f"{row}: {done} of {options.cycles} cycles, {seconds:.0f} s, {result}\n")
            sys.stdout.flush()
    finally:
        for each in neighbours:
            each.kill()


def survived(model: Path, cycles: int, row: str) -> tuple[int, str, float]:
    """Return how many cycles an engine did, the last error in its log if it ended, and the seconds of the cycles."""
    flushes, has_plugin = row != AS_IT_IS, row == "with-plugin"
    path = os.environ.get("PYTHONPATH", "")
    environment = os.environ | ({"PYTHONPATH": f"{GPU_SITE}:{path}"} if has_plugin else {})
    arguments = [f"--model-path={model}", f"--port={PORT}", "--attention-backend=triton", "--sampling-backend=pytorch"]
    memory = ["--enable-memory-saver", "--mem-fraction-static=0.5", "--max-total-tokens=131072"]
    command = [sys.executable, "-m", "sglang.launch_server", *arguments, *memory, "--cuda-graph-max-bs-decode=256"]
    with TemporaryDirectory() as directory:
        log = Path(directory, "log")
        with log.open("wb") as output:
            engine = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            wait_for(engine)
            began, done = time.monotonic(), 0
            try:
                while done < cycles:
                    cycle(done, flushes=flushes)
                    done += 1
            except (urllib.error.URLError, OSError):
                errors = [line for line in log.read_text().splitlines() if "Error" in line]
                return done, errors[-1] if errors else "no error in its log", time.monotonic() - began
            return done, "", time.monotonic() - began
        finally:
            engine.kill()
            subprocess.run(["pkill", "-9", "-f", "sglang::"], check=False)
            engine.wait()
            time.sleep(3.0)


def wait_for(engine: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and engine.poll() is None:
        try:
            post("/generate", {"text": "1 + 1 =", "sampling_params": {"max_new_tokens": 2}})
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1.0)
    raise RuntimeError("the engine does not start")


def cycle(number: int, *, flushes: bool) -> None:
    prompts = [f"{number} + {each} =" for each in range(256)]
    post("/generate", {"text": prompts, "sampling_params": {"max_new_tokens": 6, "temperature": 1.0}})
    if flushes:
        post("/flush_cache?timeout=60", {})
    post("/release_memory_occupation", {"tags": ["kv_cache"]})
    post("/resume_memory_occupation", {"tags": ["kv_cache"]})


def post(path: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


if __name__ == "__main__":
    main()
