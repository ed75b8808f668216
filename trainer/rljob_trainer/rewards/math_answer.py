"""math-verify: 1 when the response's final answer equals the label mathematically (1/2 and 0.5), else 0.

It runs in a worker (`worker.py`): math-verify ends endless simplification by SIGALRM, which Python gives to the main
thread only, and where the signal does not help, in a long multiplication for example, the worker's own limits do.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

TIMEOUT_S = 5
"""of one parsing or comparison [s]; an answer that takes longer is wrong"""


def math_answer(question: str, response: str, label: str, metadata: Mapping[str, Any]) -> float:
    """Return 1.0 or 0.0. Raises ValueError when the label is not mathematics."""
    gold = _label(label)
    if not gold:
        raise ValueError(f"math-verify finds no answer in the label {label!r}")
    return float(verify(gold, parse(response, parsing_timeout=TIMEOUT_S), timeout_seconds=TIMEOUT_S))


@lru_cache(maxsize=65536)
def _label(label: str) -> Any:
    """Parse a label; a bare one is put in a box, for without it math-verify reads `2\\sqrt{2}` as 2."""
    marked = "$" in label or r"\boxed" in label
    return parse(label if marked else rf"\boxed{{{label}}}", parsing_timeout=TIMEOUT_S)
