"""The program in which foreign templates and tokenizers run: it renders and tokenises, and may die of it.

`TextMaker` starts this file by its path, without the rest of the trainer: it starts in a tenth of a second. A request
is a line of JSON on standard input, an answer one on standard output. Memory is limited for all of it, the processor's
time for each request: the kernel then ends the process, also inside of a library. It ends with its standard input.

transformers would render and tokenise the same, after seconds of importing torch. A template is rendered as there
(5.12): in jinja2's sandbox, with trimmed blocks.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

REFUSED, FAILED, DONE = "refused", "failed", "done"
LONGEST_REASON = 2_000
"""[characters]"""


class Generation(Extension):
    """`{% generation %}`: marks what the assistant says, and writes it."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 says so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    made.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return made


def refuse(message: str) -> str:
    """Let a template say no."""
    raise TemplateError(message)


class Maker:
    """What is asked for, by the names of requests."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._environment = environment()
        self._templates: dict[str, Any] = {}
        self._tokenizers: dict[tuple[str, str], Any] = {}

    def render(self, template: str, variables: dict[str, Any]) -> str:
        if template not in self._templates:
            self._judge_constants(template)
            self._templates = {template: self._environment.from_string(template)}
        text: str = self._templates[template].render(**variables)
        if len(text) > self._longest:
            raise TemplateError(f"it makes {len(text)} characters; at most {self._longest} are taken")
        return text

    def _judge_constants(self, template: str) -> None:
        """Raise MemoryError for a constant that jinja2 would compute, wherever it stands, when it compiles."""
        context = nodes.EvalContext(self._environment)
        for node in self._environment.parse(template).find_all(nodes.Expr):
            try:
                value = node.as_const(context)
            except nodes.Impossible as error:
                if isinstance(error.__cause__, MemoryError):
                    raise error.__cause__ from error
                continue
            if isinstance(value, str | list | tuple) and len(value) > self._longest:
                raise MemoryError

    def encode(self, path: str, state: str, text: str, special: bool) -> list[int]:
        tokens = self._tokenizer(path, state).encode(text, add_special_tokens=special).ids
        if len(tokens) > self._longest:
            raise ValueError(f"it makes {len(tokens)} tokens; at most {self._longest} are taken")
        return list(tokens)

    def decode(self, path: str, state: str, tokens: list[int]) -> int:
        """Return the number of characters."""
        length = len(self._tokenizer(path, state).decode(tokens, skip_special_tokens=False))
        if length > self._longest:
            raise ValueError(f"it makes {length} characters; at most {self._longest} are taken")
        return length

    def vocabulary(self, path: str, state: str) -> dict[str, int]:
        return dict(self._tokenizer(path, state).get_vocab(with_added_tokens=True))

    def added(self, path: str, state: str) -> dict[str, int]:
        found = self._tokenizer(path, state).get_added_tokens_decoder()
        return {token.content: number for number, token in found.items()}

    def _tokenizer(self, path: str, state: str) -> Any:
        from tokenizers import Tokenizer  # a template needs none

        if (path, state) not in self._tokenizers:
            self._tokenizers[path, state] = Tokenizer.from_file(path)
        return self._tokenizers[path, state]


def answer(name: str, work: Callable[..., Any], arguments: dict[str, Any]) -> tuple[str, Any]:
    """Return what became of a request; a template may refuse by any exception, and a tokenizer may fail."""
    try:
        return DONE, work(**arguments)
    except MemoryError:
        return FAILED, "it takes too much memory"
    except RecursionError:
        return FAILED, "it is nested too deeply"
    except Exception as error:  # noqa: BLE001  # a template or a file can make a library raise anything
        kind = "" if isinstance(error, TemplateError) or name != "render" else f"{type(error).__name__}: "
        return REFUSED if name == "render" else FAILED, f"{kind}{error}"[:LONGEST_REASON]
    except BaseException as error:  # noqa: BLE001  # a panic of the library of tokenizers
        return FAILED, str(error)[:LONGEST_REASON]


def main() -> None:
    longest, memory = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    begun_with = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (begun_with + memory, begun_with + memory))
    maker, requests = Maker(longest), sys.stdin.buffer
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    while line := requests.readline():
        name, arguments, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process, in any library
        kind, result = answer(name, getattr(maker, name), arguments)
        try:
            written = json.dumps([kind, result])
        except (MemoryError, ValueError, RecursionError) as error:
            written = json.dumps([FAILED, type(error).__name__])
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(written.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
