"""Tries the reward or the rollout of a manifest on real rows of its data, in this process. No cluster."""
