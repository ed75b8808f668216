"""Mixtral: a mixture of experts in every layer, in samples that are not longer than its sliding window."""

from typing import Any

from mbridge.models.mixtral import MixtralBridge

from rljob_trainer.learners.rank.weights.families.expert_bridge import ExpertBridge


class Bridge(ExpertBridge, MixtralBridge):
    """Mixtral's names; the weights of a token's experts add up to 1."""

    def _family(self) -> dict[str, Any]:
        return super()._family() | {"moe_router_pre_softmax": False}
