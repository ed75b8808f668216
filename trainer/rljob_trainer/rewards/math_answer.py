"""math-verify: 1 when the response's final answer equals the label mathematically (1/2 and 0.5), else 0."""

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Response

TIMEOUT_S = 5


def math_answer(responses: Sequence[Response]) -> list[float]:
    """Return 1.0 or 0.0 for each response. Raises RewardError when a label is no mathematics.

    math-verify stops endless simplification by SIGALRM, which Python gives to the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RewardError("reward.kind math must be computed in the main thread: its time limit is a signal")
    return [_score(response) for response in responses]


def _score(response: Response) -> float:
    label = response.prompt.label
    gold = _label(label)
    if not gold:
        raise RewardError(f"prompt {response.prompt.uid}: math-verify finds no answer in the label {label!r}")
    return float(verify(gold, parse(response.text, parsing_timeout=TIMEOUT_S), timeout_seconds=TIMEOUT_S))


@lru_cache(maxsize=65536)
def _label(label: str) -> Any:
    """Parse a label; a bare one is put in a box, for without it math-verify reads `2\\sqrt{2}` as 2."""
    marked = "$" in label or r"\boxed" in label
    return parse(label if marked else rf"\boxed{{{label}}}", parsing_timeout=TIMEOUT_S)
