"""`rljob run` as a process of its own, with the fake driver: `python supervised.py PLAN MANIFEST STALL_S`.

What the user would see comes on standard output: `note TEXT` and `state STATE ATTEMPT`.
"""

import logging
import sys
from pathlib import Path

from rljob_api.control import Status
from rljob_api.recovery import Backoff
from rljob_cli.run.run import run
from rljob_cli.run.supervisor import Timing

FAKE_DRIVER = Path(__file__).with_name("fake_driver.py")


class Lines:
    """A display for tests."""

    def __init__(self) -> None:
        self._shown: tuple[str, int] | None = None

    def update(self, status: Status) -> None:
        now = (status.state.value, status.attempt)
        if now != self._shown:
            self._shown = now
            print("state", *now, flush=True)

    def note(self, text: str) -> None:
        print("note", text, flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    plan, manifest, stall_s = sys.argv[1:]
    timing = Timing(tick_s=0.05, backoff=Backoff(first_s=0.2), shortest_stall_s=float(stall_s), ray_patience_s=0.5)
    driver = (sys.executable, str(FAKE_DRIVER), plan)
    sys.exit(run(Path(manifest), Lines(), driver, timing))
