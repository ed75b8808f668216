"""A reward of one's own: the closer the number, the higher; 1 when it is right, 0 when there is no number.

    spec.reward: {kind: python, function: closeness:closeness}

Its directory must be on PYTHONPATH where the job runs. `async def` works too: all responses of a step are then
judged at the same time.
"""

import re
from collections.abc import Mapping
from typing import Any

NUMBER = re.compile(r"-?\d+")


def closeness(question: str, response: str, label: str, metadata: Mapping[str, Any]) -> float:
    """Return 1 / (1 + distance) between the first number in the response and the label."""
    found = NUMBER.search(response)
    return 0.0 if found is None else 1.0 / (1.0 + abs(int(found.group()) - int(label)))
