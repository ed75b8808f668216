"""Questions made by reasoning-gym, and the verifiers of their answers.

A generated row carries the recipe of its task (`verifier`), so that scoring needs only the row: the
verifiers of some tasks depend on the task's settings.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from rljob_api.sections import ReasoningGym
from rljob_trainer.data.errors import DataError

with warnings.catch_warnings():
    # cellpylib 2.4.0, a dependency, compares with a literal by `is`: Python says so when it compiles the file.
    warnings.simplefilter("ignore", SyntaxWarning)
    from reasoning_gym.factory import DATASETS, create_dataset

Verifier = Callable[[str, dict[str, Any]], float]

RECIPE = "verifier"


def distinct_rows(source: ReasoningGym) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of the task without repeated questions: small tasks run out of different ones."""
    recipe = {"task": source.task, "config": source.config}
    seen = set()
    for number, entry in enumerate(_dataset(source.task, source.config | {"size": source.size, "seed": source.seed})):
        if entry["question"] not in seen:
            seen.add(entry["question"])
            yield f"{source.task} question {number}", entry | {RECIPE: recipe}


def verifier(recipe: dict[str, Any]) -> Verifier:
    """Return the function that scores (answer, row) for rows with this recipe."""
    return _verifier(recipe["task"], json.dumps(recipe["config"], sort_keys=True))


@cache
def _verifier(task: str, config: str) -> Verifier:
    score: Verifier = _dataset(task, json.loads(config)).score_answer
    return score


def _dataset(task: str, config: dict[str, Any]) -> Any:
    """Return the data set; it is iterable, and its items are dicts with question, answer and metadata."""
    if task not in DATASETS:
        raise DataError(f"reasoning-gym has no task `{task}`; it has {', '.join(sorted(DATASETS))}")
    try:
        return create_dataset(task, **config)
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(f"reasoning-gym refuses config {config} of `{task}`: {error}") from error
