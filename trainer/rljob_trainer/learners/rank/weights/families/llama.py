"""Llama, and models that differ from it in sizes only, such as SmolLM2."""

from mbridge.models.llama import LLaMABridge

from rljob_trainer.learners.rank.weights.families.local_bridge import LocalBridge


class Bridge(LocalBridge, LLaMABridge):
    """Llama's names."""
