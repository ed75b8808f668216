"""Mistral: Llama's layers, in samples that are not longer than its sliding window."""

from mbridge.models.llama import LLaMABridge

from rljob_trainer.learners.rank.weights.families.local_bridge import LocalBridge


class Bridge(LocalBridge, LLaMABridge):
    """Llama's names."""
