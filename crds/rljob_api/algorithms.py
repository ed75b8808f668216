"""The algorithms that a manifest can name, and which settings each of them looks at.

A new algorithm is a line here and a file in `rljob_trainer.algorithms`, which the trainer finds by the name: of
`reinforcePlusPlus` it is `reinforce_plus_plus`, with a function of that name. An algorithm that a user brings
(`module:object`) is given all settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Traits:
    """What the rules need to know of an algorithm."""

    objective: Literal["clip", "gspo", "cispo", "likelihood"]
    """the policy objective that its advantages are put into"""
    normalizes: bool
    """whether it divides by a standard deviation that `normalizeBy` chooses"""
    critic: bool = False
    """whether it needs a value model, which `critic` describes"""


DISTILLATION = "distillation"
"""the one algorithm that has a teacher"""
SFT = "sft"
"""the one algorithm that trains on the responses of the data, and so needs no engines"""

KNOWN: Mapping[str, Traits] = {
    "grpo": Traits("clip", normalizes=True),
    "gspo": Traits("gspo", normalizes=True),
    "cispo": Traits("cispo", normalizes=True),
    "rloo": Traits("clip", normalizes=False),
    "reinforcePlusPlus": Traits("clip", normalizes=False),
    "reinforcePlusPlusBaseline": Traits("clip", normalizes=False),
    "ppo": Traits("clip", normalizes=False, critic=True),
    DISTILLATION: Traits("clip", normalizes=False),
    SFT: Traits("likelihood", normalizes=False),
}


def names(
    *, objective: str | None = None, normalizes: bool | None = None, critic: bool | None = None
) -> tuple[str, ...]:
    """Return the algorithms of this objective, that normalise in this way, or that have a critic or none."""
    return tuple(
        name
        for name, traits in KNOWN.items()
        if objective in (None, traits.objective)
        and normalizes in (None, traits.normalizes)
        and critic in (None, traits.critic)
    )
