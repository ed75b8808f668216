"""Copies of a parameter on several ranks of the learner that should be equal and are not. Pure; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.control import Finding
from rljob_trainer.learners.link_report import LinkReport, named

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


def finding(unequal: Sequence[UnequalCopy], links: LinkReport | None) -> Finding | None:
    """Return the finding of copies that are not equal; None: all are. `links` knows the places of the ranks."""
    if not unequal or links is None:
        return None
    return Finding(
        name="UnequalCopies",
        evidence=_in_words(unequal, links.places),
        advice="Ranks train different models, and engines that get their weights are quarantined. Restart the driver:"
        " every rank then reads the same copy from the checkpoint. If the same rank differs again, its GPU or its host"
        " memory makes errors: look at ECC and Xid messages of that node.",
    )


def _in_words(copies: Sequence[UnequalCopy], places: Sequence[str]) -> str:
    """Return which parameters differ, and on which ranks; `places` are the hosts or pods of all ranks."""
    texts = [
        f"{copy.parameter}: {', '.join(named(rank, places) for rank in copy.others)}"
        f" {'differs' if len(copy.others) == 1 else 'differ'} from {named(copy.ranks[0], places)}"
        for copy in copies[:MOST]
    ]
    more = [f"and {len(copies) - MOST} more"] if len(copies) > MOST else []
    return "; ".join(texts + more)
