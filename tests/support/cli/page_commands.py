"""The commands of a page, in its order: blocks of commands, and commands behind `$` with what they print. Pure."""

import re
from dataclasses import dataclass

FENCE = "```"
PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Block:
    """What a reader types at once."""

    script: str
    """for a shell"""
    shown: str = ""
    """what the page says that it prints; empty: the page shows nothing"""


def section(page: str, heading: str) -> str:
    """Return what is below a heading of the second level. Raises ValueError if there is none of this name."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no heading `## {heading}`")
    return found[1]


def blocks(text: str) -> list[Block]:
    """Return the blocks between fences."""
    return [_block(part.partition("\n")[2]) for part in text.split(FENCE)[1::2]]


def first_words(printed: str) -> list[str]:
    """Return the first word of each line that has one: numbers and times behind it are others each time."""
    return [line.split()[0] for line in printed.splitlines() if line.strip()]


def _block(content: str) -> Block:
    if not content.startswith(PROMPT):
        return Block(content)
    command, _, shown = content.removeprefix(PROMPT).partition("\n")
    return Block(command, shown)
