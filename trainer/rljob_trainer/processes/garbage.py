"""How often this process looks for garbage. Called by the driver once all parts have started."""

import gc

YOUNG, MIDDLE, OLD = 50_000, 20, 20
"""thresholds of Python's collector, whose defaults are 2,000, 10 and 10 (700 before 3.12)"""


def collect_rarely() -> None:
    """Keep what exists now for ever, and look for new garbage a tenth as often.

    A rollout of 4,096 samples makes a million short lists, all freed by reference counting. With Python's defaults the
    collector walks through the whole heap again and again meanwhile, which takes twice as long as reading the samples.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
