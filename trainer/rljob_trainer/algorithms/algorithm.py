"""What an algorithm is: how rewards become advantages, and the policy objective that they are put into. No torch.

    rewards ─► Advantage (driver) ─► packing ─► objective (ranks of the learner, named by a dotted path) ─► loss

Each file beside this one is one algorithm: a function from the manifest's settings to an `Algorithm`, called like its
file and, in camel case, like its line in `rljob_api.algorithms`. A user's own is such a function in any module that the
driver and the ranks can import; `spec.algorithm.name: module:function` names it.

Axes: G samples of one prompt, T response tokens of one sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rljob_api import sections

Penalties_T = npt.NDArray[np.float64]
Values_T = npt.NDArray[np.float64]
Value = float | npt.NDArray[np.float64]
"""the advantage of a sample: one number for all its tokens, or one for each"""

CLIP = "rljob_trainer.learners.objectives.clip:clip"
GSPO = "rljob_trainer.learners.objectives.gspo:gspo"
CISPO = "rljob_trainer.learners.objectives.cispo:cispo"
LIKELIHOOD = "rljob_trainer.learners.objectives.likelihood:likelihood"


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The results of one group."""

    rewards_G: tuple[float, ...]
    """empty if nothing is judged"""
    lengths_G: tuple[int, ...]
    """response tokens"""
    penalties_G: tuple[Penalties_T, ...] | None = None
    """penalty of each response token, subtracted from the reward; None: there is none"""
    values_G: tuple[Values_T, ...] | None = None
    """the critic's value before each response token; None: there is no critic"""

    @property
    def scores_G(self) -> tuple[float, ...]:
        """The rewards, less the penalties of all tokens."""
        if self.penalties_G is None:
            return self.rewards_G
        return tuple(
            reward - float(penalties_T.sum())
            for reward, penalties_T in zip(self.rewards_G, self.penalties_G, strict=True)
        )


class Advantage(Protocol):
    """How much better samples are than expected."""

    def __call__(self, outcomes: Sequence[GroupOutcome]) -> Sequence[Sequence[Value]]:
        """Return the advantages of all groups of one rollout, in order.

        Zero means no gradient. Raises ValueError if a group is empty.
        """


class Returns(Protocol):
    """What a critic is fitted to."""

    def __call__(self, outcome: GroupOutcome) -> Sequence[Values_T]:
        """Return the return of each response token of each sample of a group."""


@dataclass(frozen=True, slots=True)
class PerGroup:
    """An advantage that looks at the scores of one group at a time."""

    function: Callable[[Sequence[float]], Sequence[float]]

    def __call__(self, outcomes: Sequence[GroupOutcome]) -> Sequence[Sequence[Value]]:
        return [tuple(self.function(outcome.scores_G)) for outcome in outcomes]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What `spec.algorithm.name` stands for."""

    advantage: Advantage
    objective: str = CLIP
    """`module:object` of a `rljob_trainer.learners.objectives.objective.Objective`; each rank imports it"""
    returns: Returns | None = None
    """what the critic is fitted to; None: there is no critic"""


Make = Callable[[sections.Algorithm], Algorithm]
"""what built-in and users' algorithms define"""
