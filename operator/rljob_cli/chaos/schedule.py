"""When which fault happens: the same for the same seed. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_cli.chaos.faults import Fault

MOST = 10_000
"""faults of one schedule"""
SHORTEST, LONGEST = 0.5, 1.5
"""gaps between two faults, in mean gaps"""


class TooManyFaultsError(ValueError):
    """A schedule would have more than MOST faults; the text names the nearest valid gap."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault that will happen."""

    at_s: float
    """after the start, at the earliest: a fault waits until the job has recovered from the one before [s]"""
    fault: Fault
    draw: float
    """from 0 to below 1: which of the targets that there are then"""


def schedule(seed: int, faults: Sequence[Fault], every_s: float, for_s: float) -> tuple[Planned, ...]:
    """Return the faults, in order of time.

    Each fault comes once, in random order, before any comes again. Raises TooManyFaultsError.
    """
    if for_s > MOST * every_s:
        raise TooManyFaultsError(f"more than {MOST} faults; nearest valid: --every {-(-int(for_s) // MOST)}s")
    chance = random.Random(seed)
    planned: list[Planned] = []
    round_: list[Fault] = []
    at_s = 0.0
    while True:
        at_s += every_s * chance.uniform(SHORTEST, LONGEST)
        if at_s >= for_s:
            return tuple(planned)
        if not round_:
            round_ = chance.sample(list(faults), len(faults))
        planned.append(Planned(round(at_s, 1), round_.pop(), chance.random()))
