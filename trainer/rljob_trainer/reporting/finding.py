"""A named problem of a run, with its numbers and what to do."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """An anomaly of the run."""

    name: str
    """for example `RewardCollapse`"""
    evidence: str
    """the numbers, the limit and its field"""
    advice: str
    """what to check or to change first"""
