"""Reads the evidence of failed attempts in a separate process: it takes seconds, and tenants write it.

    Reconciler ─► ask(job, attempt, evidence) ─► reader process, one evidence after the other ─► found(job)
                                                                                    └─► changed(job)

A reader that takes too long or ends is replaced, and its evidence counts as read: nothing was recognised.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict

from rljob_api.known_failure import KnownFailure
from rljob_operator.attempts.diagnosis import failure_in
from rljob_operator.cache.cache import Key
from rljob_operator.world.history import Evidence

log = logging.getLogger(__name__)

READ_S = 20.0
"""time for one evidence, of which the start of a reader takes the most; texts have at most 32,000 characters [s]"""
WAIT_S = 60.0
"""the same with the wait for others: the end of an attempt may not wait longer for its explanation [s]"""
LONGEST_LINE = 2**20
"""[bytes]"""
READER = (sys.executable, "-m", "rljob_operator.diagnoses")


class Diagnoses:
    """What was found in the evidence of each job's newest attempt."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        """`changed` is called with a job whose evidence was read."""
        self._changed = changed
        self._found: dict[Key, dict[int, KnownFailure | None]] = {}
        self._reading: dict[Key, tuple[int, asyncio.Task[None]]] = {}
        self._lock = asyncio.Lock()
        self._reader: asyncio.subprocess.Process | None = None

    def found(self, key: Key) -> Mapping[int, KnownFailure | None]:
        """Return what was found, by the number of the attempt."""
        return self._found.get(key, {})

    def ask(self, key: Key, attempt: int, evidence: Evidence) -> None:
        """Have the evidence of an attempt read, unless that has begun: the first evidence counts."""
        if attempt in self.found(key):
            return
        if key in self._reading:
            number, task = self._reading[key]
            if number == attempt:
                return
            task.cancel()
        self._reading[key] = attempt, asyncio.create_task(self._read(key, attempt, evidence))

    def forget(self, key: Key) -> None:
        """Forget a job that is gone."""
        self._found.pop(key, None)
        if key in self._reading:
            self._reading.pop(key)[1].cancel()

    async def close(self) -> None:
        """End the reader."""
        tasks = [task for _, task in self._reading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._end()

    async def _read(self, key: Key, attempt: int, evidence: Evidence) -> None:
        failure = None
        try:
            async with asyncio.timeout(WAIT_S), self._lock:
                failure = await self._answer(evidence)
        except TimeoutError:
            log.warning("action=diagnose job=%s attempt=%d outcome=timeout", key, attempt)
        except Exception:  # the top of a task that is not awaited; the attempt has ended in any case
            log.exception("action=diagnose job=%s attempt=%d outcome=failed", key, attempt)
        self._found[key] = {attempt: failure}
        self._reading.pop(key, None)
        self._changed(key)

    async def _answer(self, evidence: Evidence) -> KnownFailure | None:
        """Return what the reader finds; raise what keeps it from an answer. It is not used again then."""
        try:
            async with asyncio.timeout(READ_S):
                reader = self._reader = self._reader or await _started()
                assert reader.stdin is not None and reader.stdout is not None
                reader.stdin.write(json.dumps(asdict(evidence)).encode() + b"\n")
                await reader.stdin.drain()
                line = await reader.stdout.readline()
                found = json.loads(line) if line else None
                return KnownFailure(**found) if found else None
        except BaseException:
            await self._end()
            raise

    async def _end(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and reader.returncode is None:
            reader.kill()
            await reader.wait()


async def _started() -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*READER, stdin=pipe, stdout=pipe, limit=LONGEST_LINE)


def main() -> None:
    """Read one evidence a line, and write what is found in it; end with the operator, which closes the pipe."""
    for line in sys.stdin:
        found = failure_in(Evidence(**json.loads(line)))
        sys.stdout.write(json.dumps(asdict(found) if found else None) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
