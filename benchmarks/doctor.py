"""How long `rljob doctor` takes for a large log, for `docs/performance.md`.

python benchmarks/doctor.py --gigabytes 1
"""

import argparse
import tempfile
import time
from pathlib import Path

from rljob_api.failures.catalogue import catalogue
from rljob_cli.doctor import scanned

HEALTHY = """\
(SGLangEngine pid=811) [2026-03-04 10:25:31 TP0] Decode batch, #running-req: 52, #token: 40112, #queue-req: 0
(MegatronTrainRayActor pid=818) step 12: {'train/loss': 0.0031, 'train/grad_norm': 0.4127, 'train/step': 12}
(SGLangEngine pid=811) [2026-03-04 10:25:31] INFO:     10.0.0.2:51110 - "POST /generate HTTP/1.1" 200 OK
2026-03-04 10:25:31,123 INFO rljob_trainer.sync.publisher action=publish version=4 engines=2 seconds=0.512 errors=0
"""


def main() -> None:
    """Write a healthy log with each known failure at its end, and print the time of a scan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    size = int(parser.parse_args().gigabytes * 1e9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        block = HEALTHY.encode() * 10_000
        with path.open("wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
            for failure in catalogue().values():
                file.write(f"{failure.example}\n".encode())
        began = time.process_time()
        result = scanned(path, "run.log")
        seconds = time.process_time() - began
    speed = result.size / 1e6 / seconds
    print(f"{result.size / 1e9:.2f} GB, {result.lines:,} lines: {seconds:.1f} s of one core, {speed:.0f} MB/s")
    print(f"{len(result.found)} failures found")


if __name__ == "__main__":
    main()
