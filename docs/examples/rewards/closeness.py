"""A reward function: 1 for the right number, less for a larger distance, 0 without a number.

    spec.reward: {kind: Python, function: closeness:closeness}

Its directory must be on PYTHONPATH where the job runs. With `async def`, the responses of a step are scored
concurrently.
"""

import re
from collections.abc import Mapping
from typing import Any

NUMBER = re.compile(r"-?\d+")


def closeness(question: str, response: str, label: str, metadata: Mapping[str, Any]) -> float:
    """Return 1 / (1 + distance) between the first number in the response and the label."""
    found = NUMBER.search(response)
    return 0.0 if found is None else 1.0 / (1.0 + abs(int(found.group()) - int(label)))
