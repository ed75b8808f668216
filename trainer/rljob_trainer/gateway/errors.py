"""What a client of the gateway is told when its request cannot be answered."""

from dataclasses import dataclass

TOO_LONG = "context_length_exceeded"
"""OpenAI's code, which agents know"""


@dataclass(eq=False)
class RequestError(Exception):
    """A request that is not answered; the text is for the agent's author."""

    message: str
    field: str | None = None
    """of the request"""
    code: str | None = None
    status: int = 400

    def __str__(self) -> str:
        return self.message
