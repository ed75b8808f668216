"""Renders templates and tokenises with foreign files, in a separate process with limits (`text_maker.py`).

A template or a tokenizer can take all memory, never end, or abort its process; here that is an error with a reason.
"""

import atexit
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from rljob_trainer.processes import text_maker

LONGEST_TEXT = 2**24
"""of a rendered template [characters], and of a text [tokens]"""
MEMORY = 2**30
"""of the process beside its start [bytes]"""
MEMORY_PER_BYTE = 30
"""of a tokenizer's file: its vocabulary in the library, and as a dictionary"""
RENDER_S, LOAD_S, ENCODE_S, LIST_S = 1.0, 30.0, 3.0, 3.0
"""of the processor for a template, a tokenizer's file, a text, and a list of its tokens"""
BYTES_PER_S = 2**20
"""of a conversation, a file or a text, for each of which a second is added"""


class ForeignFileError(Exception):
    """A template or tokenizer takes too much, or ends its process; the text says which and why."""


class CostlyTemplateError(ForeignFileError, TemplateError):
    """A template takes too much."""


class TextMaker:
    """One process, started when it is needed and again after it ended. Any thread may call it."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._least_memory = self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: frozenset[tuple[str, str]] = frozenset()
        self._lock = threading.Lock()

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return the text. Raises TemplateError where the template refuses, and CostlyTemplateError."""
        try:
            return str(self._asked("render", RENDER_S, template=template, variables=dict(variables)))
        except ForeignFileError as error:
            raise CostlyTemplateError(str(error)) from error

    def encode(self, path: Path, text: str, special: bool) -> list[int]:
        """Return the tokens of a text. Raises ForeignFileError."""
        return list(self._asked("encode", ENCODE_S, path=path, text=text, special=special))

    def decode(self, path: Path, tokens: Sequence[int]) -> int:
        """Return how many characters tokens make. Raises ForeignFileError."""
        return int(self._asked("decode", ENCODE_S, path=path, tokens=list(tokens)))

    def vocabulary(self, path: Path) -> dict[str, int]:
        """Return all tokens of a tokenizer by their texts. Raises ForeignFileError."""
        return dict(self._asked("vocabulary", LIST_S, path=path))

    def added(self, path: Path) -> dict[str, int]:
        """Return the tokens that no ordinary text is split into. Raises ForeignFileError."""
        return dict(self._asked("added", LIST_S, path=path))

    def close(self) -> None:
        """End the process; the next request starts another one."""
        with self._lock:
            self._end()

    def _asked(self, name: str, seconds: float, path: Path | None = None, **arguments: Any) -> Any:
        size, file = 0, None
        if path is not None:
            found = path.stat()
            size, file = found.st_size, (str(path), f"{found.st_size} {found.st_mtime_ns}")
            arguments |= {"path": file[0], "state": file[1]}
        written = json.dumps(arguments, default=str)
        seconds += (len(written) + size) / BYTES_PER_S
        with self._lock:
            if file is not None and file not in self._loaded:
                seconds += LOAD_S + size / BYTES_PER_S
            line = self._line(f'["{name}", {written}, {seconds}]', self._least_memory + size * MEMORY_PER_BYTE)
            if not line.endswith(b"\n"):
                raise ForeignFileError(self._why_ended(seconds))
            self._loaded |= {file} if file is not None else set()
        kind, result = json.loads(line)
        if kind == text_maker.REFUSED:
            raise TemplateError(result)
        if kind == text_maker.FAILED:
            raise ForeignFileError(result)
        return result

    def _line(self, request: str, memory: int) -> bytes:
        """Return the answer; without an end, the process has ended instead."""
        process = self._started(memory)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{request}\n".encode())
            process.stdin.flush()
            return process.stdout.readline()
        except OSError:
            return b""
        except BaseException:
            self._end()  # its answer would be taken for that to the next request
            raise

    def _started(self, memory: int) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is None and memory <= self._memory:
            return self._process
        self._end()
        self._memory = max(memory, self._memory)
        self._process = subprocess.Popen(
            [sys.executable, "-I", text_maker.__file__, str(LONGEST_TEXT), str(self._memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"TOKENIZERS_PARALLELISM": "false"},
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has begun
        return self._process

    def _why_ended(self, seconds: float) -> str:
        assert self._process is not None
        code = self._process.wait()
        self._end()
        if code == -signal.SIGPROF:
            return f"it takes more than {seconds:.0f} s of the processor"
        return f"it ends its process (code {code}): it takes too much memory, or a library fails"

    def _end(self) -> None:
        if self._process is None:
            return
        process, self._process, self._loaded = self._process, None, frozenset()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


MAKER = TextMaker()
"""of this process"""
atexit.register(MAKER.close)
