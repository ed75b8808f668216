"""Qwen2 and Qwen2.5: queries, keys and values have a bias."""

from mbridge.models.qwen2 import Qwen2Bridge

from rljob_trainer.learners.rank.weights.families.local_bridge import LocalBridge


class Bridge(LocalBridge, Qwen2Bridge):
    """Qwen2's names."""
