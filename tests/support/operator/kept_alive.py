"""Starts an operator again whenever it has ended, as a kubelet does."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from support.operator.operator_process import OperatorProcess


@dataclass
class Lives:
    """What has been started."""

    operator: OperatorProcess
    """that of now"""
    count: int = 1


@contextmanager
def kept_alive(start: Callable[[int], OperatorProcess], pause_s: float = 1.0) -> Iterator[Lives]:
    """Keep an operator running; `start(number)` starts the next one."""
    lives, over = Lives(start(1)), threading.Event()

    def watch() -> None:
        while not over.wait(pause_s):
            if lives.operator.exit_code is not None:
                lives.count += 1
                lives.operator = start(lives.count)

    thread = threading.Thread(target=watch, name="kept-alive")
    thread.start()
    try:
        yield lives
    finally:
        over.set()
        thread.join()
        lives.operator.kill()
