"""Names in a run's directory that are known also where the packages of the trainer are not installed."""

import re

CHECKPOINTS = "checkpoints"
CHECKPOINT = re.compile(r"iter_\d{7,}")
"""name of a complete checkpoint"""
CHECKPOINT_MANIFEST = "rljob.json"
"""in a checkpoint: what it says of itself"""
JOURNAL = "journal.jsonl"
FULL_JOURNALS = "journal"
"""directory of the files of the journal that were full, beside it"""
ROLLOUTS = "rollouts"
SET_ASIDE = "set-aside"
"""begins the names of directories with results that a run did not continue from"""


def step_in(name: str) -> int:
    """Return the step in the name of a checkpoint."""
    return int(name.removeprefix("iter_"))


def full_journal(until: int) -> str:
    """Return the name of the file of the journal that was full after this number of steps."""
    return f"until-{until:07d}.jsonl"
