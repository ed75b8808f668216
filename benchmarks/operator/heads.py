"""Fake heads, as a program of their own: Ray's Jobs API and drivers whose status changes all the time.

A driver's step grows every `--step-s` seconds, and it saves a checkpoint every `--save-s`. The path of a checkpoint
ends with the moment at which the driver reported it, so a reader of the RLJob knows how long that took.
"""

import argparse
import asyncio
import random
import re
import time

from aiohttp import web

from rljob_api.control import SavedCheckpoint, Status
from support.operator.fake_head import FakeHeads, Head, serving


class BusyHeads(FakeHeads):
    """Drivers that train, each at its own beat."""

    def __init__(self, step_s: float, save_s: float) -> None:
        super().__init__()
        self._step_s = step_s
        self._save_s = save_s
        self._began: dict[int, float] = {}
        self._saved: dict[int, SavedCheckpoint] = {}

    async def _status(self, request: web.Request) -> web.Response:
        head = self._head(request)
        self._let_in(request, head)
        began = self._began.setdefault(id(head), time.time() - random.random() * self._save_s)
        ran_s = time.time() - began
        since = request.query.get("since")
        if since == str(int(ran_s / self._step_s) + 1):
            await asyncio.sleep(self._step_s - ran_s % self._step_s)
        status = self._report(head, began)
        return web.Response(text=status.model_dump_json(by_alias=True), content_type="application/json")

    def _report(self, head: Head, began: float) -> Status:
        now = time.time()
        step, saves = int((now - began) / self._step_s) + 1, int((now - began) / self._save_s)
        saved = self._saved.get(id(head))
        if saved is None or saved.step != saves:
            saved = self._saved[id(head)] = SavedCheckpoint(step=saves, path=f"checkpoints/{now:.4f}", verified=True)
        progress = head.status.progress.model_copy(update={"step": step, "steps": 10**6})
        changes = {"revision": step, "progress": progress, "checkpoint": saved, "heartbeat": now}
        return head.status.model_copy(update=changes)


def written_at(path: str) -> float:
    """Return when a driver reported a checkpoint [unix s]."""
    found = re.fullmatch(r"checkpoints/(\d+\.\d+)", path)
    return float(found[1]) if found else 0.0


def main() -> None:
    """Serve until standard input ends; the first line is the URL."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--save-s", type=float, default=60.0)
    options = parser.parse_args()
    with serving(BusyHeads(options.step_s, options.save_s)) as url:
        print(url, flush=True)
        input()


if __name__ == "__main__":
    main()
