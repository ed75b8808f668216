"""Qwen3, dense."""

from mbridge.models.qwen3 import Qwen3Bridge

from rljob_trainer.learners.rank.weights.families.local_bridge import LocalBridge


class Bridge(LocalBridge, Qwen3Bridge):
    """Qwen3's names."""
