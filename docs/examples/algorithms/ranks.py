"""Advantages from ranks: how many samples of its group a sample beats, less how many beat it. Scales do not matter.

In a manifest: `algorithm.name: ranks:ranks`, with this folder in PYTHONPATH.
"""

from rljob_trainer.algorithms.algorithm import Algorithm, PerGroup


def beaten(scores):
    return [sum((score > other) - (score < other) for other in scores) / len(scores) for score in scores]


def ranks(settings):
    return Algorithm(PerGroup(beaten))
