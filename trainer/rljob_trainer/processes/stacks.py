"""The stacks of a process's threads, and where it stands in a few words. For runs that make no progress."""

import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

OURS = "rljob_trainer"
WAITING = frozenset({"stacks.py", "background.py"})
"""our files whose threads only wait, or make the stacks"""


@dataclass(frozen=True, slots=True)
class Frame:
    """A call that has not returned."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({PurePath(self.file).name}:{self.line})"


Stacks = Mapping[str, Sequence[Frame]]
"""by the name of a thread: its calls, the innermost last"""


def thread_stacks() -> Stacks:
    """Return the stacks of all threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(ident, 'thread')} {ident}": [
            Frame(each.filename, each.lineno or 0, each.name) for each in traceback.extract_stack(frame)
        ]
        for ident, frame in sys._current_frames().items()
    }


def place(stacks: Stacks | None) -> str:
    """Return where a process stands: the innermost call of the project's code, and the innermost call of all."""
    if stacks is None:
        return "does not answer"
    working = [stack for stack in stacks.values() if _own(stack)]
    if not working:
        return "idle"
    # The thread that is deepest in our code: the others wait for orders.
    stack = max(working, key=lambda each: len(_own(each)))
    own, inner = _own(stack)[-1], stack[-1]
    return str(own) if own == inner else f"{own} in {inner}"


def _own(stack: Sequence[Frame]) -> list[Frame]:
    """Return the calls of our code, none if the thread only waits."""
    own = [frame for frame in stack if OURS in PurePath(frame.file).parts]
    waits = not own or PurePath(own[-1].file).name in WAITING or own[-1].function == "stay"
    return [] if waits else own


def text(title: str, stacks: Stacks | None) -> str:
    """Return the stacks for a log."""
    lines = [f"==== {title}"]
    for thread, stack in (stacks or {}).items():
        lines += [f"---- {thread}", *(f"  {each.file}:{each.line} {each.function}" for each in stack)]
    return "\n".join(lines if stacks is not None else [*lines, "does not answer"]) + "\n"
