"""A group reward: the function gets all responses to a prompt and compares them.

spec.reward: {kind: Python, function: shortest:shortest, judges: Group}
"""

from collections.abc import Mapping, Sequence
from typing import Any


def shortest(question: str, responses: Sequence[str], label: str, metadata: Mapping[str, Any]) -> list[float]:
    """Return 1 for the responses that are as short as the shortest, 0 for the others."""
    least = min(len(response.strip()) for response in responses)
    return [float(len(response.strip()) == least) for response in responses]
