"""A reward over a group: all responses to a prompt are judged at once, so that they can be compared.

spec.reward: {kind: python, function: shortest:shortest, judges: group}
"""

from collections.abc import Mapping, Sequence
from typing import Any


def shortest(question: str, responses: Sequence[str], label: str, metadata: Mapping[str, Any]) -> list[float]:
    """Return 1 for the responses that are as short as the shortest, 0 for the others."""
    least = min(len(response.strip()) for response in responses)
    return [float(len(response.strip()) == least) for response in responses]
