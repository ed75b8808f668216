"""How much better a sample is than the others of its group. Pure Python; `batches.py` calls it.

Axes: G samples of one prompt.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_EPSILON = 1e-6
"""keeps the division finite; slime and verl add the same"""


class Advantage(Protocol):
    """Turns the rewards of one group into advantages."""

    def __call__(self, rewards_G: Sequence[float]) -> tuple[float, ...]:
        """Return the advantage of each sample, in order. Raises ValueError if the group is empty."""


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """GRPO's advantage (https://arxiv.org/abs/2402.03300): reward minus the group's mean, over its standard deviation.

    Without the standard deviation it is Dr. GRPO's (https://arxiv.org/abs/2503.20783). The standard deviation is the
    unbiased one (divided by G - 1). A group whose rewards all agree, or of one sample, gives zeros: it teaches nothing.
    """

    normalize_std: bool

    def __call__(self, rewards_G: Sequence[float]) -> tuple[float, ...]:
        if not rewards_G:
            raise ValueError("a group without samples has no advantages")
        if min(rewards_G) == max(rewards_G):
            return (0.0,) * len(rewards_G)
        mean = statistics.fmean(rewards_G)
        scale = statistics.stdev(rewards_G) + _EPSILON if self.normalize_std else 1.0
        return tuple((reward - mean) / scale for reward in rewards_G)
