"""1 when the response is the label, both trimmed; 0 otherwise."""

from collections.abc import Sequence

from rljob_trainer.rewards.function import Response


def exact_match(responses: Sequence[Response]) -> list[float]:
    """Return 1.0 or 0.0 for each response."""
    return [float(response.text.strip() == response.prompt.label.strip()) for response in responses]
