"""Which of the last optimizer steps were not taken because a gradient was not finite. Pure; no torch.

A run of many thousands of steps skips some. Several of them close together mean that it diverges.
"""

from collections.abc import Iterable, Sequence

WINDOW = 100
"""optimizer steps, the critic's too, over which `training.optimizer.maxSkippedSteps` counts"""

Skips = tuple[int, ...]
"""for each of the last steps, oldest first: 1 if it was skipped, 0 if it was taken"""


def after(skips: Sequence[int], further: Iterable[int]) -> Skips:
    """Return the window after further steps."""
    return (*skips, *further)[-WINDOW:]
