"""What processes of `multiprocessing` run in a test: they import this module by its name."""

import json
import os
import time
from multiprocessing.connection import Connection

import psutil
from setproctitle import setproctitle


def tell(answer: Connection, word: str) -> None:
    """Send what this process is and sees."""
    answer.send([word, os.getpid(), os.getppid(), dict(os.environ), json.__name__])
    answer.close()


def fail() -> None:
    """End with a status of one's own."""
    os._exit(7)


def name_yourself(answer: Connection, title: str) -> None:
    """Take a title, as SGLang's processes do, and tell what others see."""
    setproctitle(title)
    answer.send(psutil.Process().name())


def stay(answer: Connection) -> None:
    """Say that it runs, and run on."""
    answer.send(os.getpid())
    time.sleep(3600)
