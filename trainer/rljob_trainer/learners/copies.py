"""Copies of a parameter on several ranks of the learner that should be equal and are not. Pure; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_trainer.learners.link_report import named

MOST = 4
"""parameters that are named in words"""


@dataclass(frozen=True, slots=True)
class UnequalCopy:
    """A parameter that several ranks hold, with the ranks whose numbers are not those of the first one."""

    parameter: str
    """Megatron's name; layers are counted over the whole model"""
    ranks: tuple[int, ...]
    """that hold the parameter"""
    others: tuple[int, ...]
    """of them, those whose copy differs from that of `ranks[0]`"""


def in_words(copies: Sequence[UnequalCopy], places: Sequence[str]) -> str:
    """Return which parameters differ, and on which ranks; `places` are the hosts or pods of all ranks."""
    texts = [
        f"{copy.parameter}: {', '.join(named(rank, places) for rank in copy.others)}"
        f" {'differs' if len(copy.others) == 1 else 'differ'} from {named(copy.ranks[0], places)}"
        for copy in copies[:MOST]
    ]
    more = [f"and {len(copies) - MOST} more"] if len(copies) > MOST else []
    return "; ".join(texts + more)
