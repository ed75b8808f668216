"""Prompts and groups to judge, and judges in files of their own."""

import textwrap
from pathlib import Path

from rljob_trainer.rewards.function import Response
from rljob_trainer.samples import Group, Prompt, Sample


def prompt(label: str = "83", uid: str = "0:7", **metadata: object) -> Prompt:
    return Prompt(uid, "47 + 36", "47 + 36 =", (1,), label, metadata)


def group(*texts: str, of: Prompt | None = None) -> Group:
    return Group(of or prompt(), tuple(Sample((1,), (0.0,), text, 0, "stop", "engine-0") for text in texts))


def responses(*texts: str, of: Prompt | None = None) -> list[Response]:
    """Return one response for each text, each to a prompt of its own unless they are all `of` one."""
    return [Response(of or prompt(uid=f"0:{row}"), text) for row, text in enumerate(texts)]


def write_module(directory: Path, source: str, name: str = "judges") -> None:
    (directory / f"{name}.py").write_text(textwrap.dedent(source))
