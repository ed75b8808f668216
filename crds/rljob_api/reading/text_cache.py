"""The newest values that were made of texts. Their texts are counted, not the values: one text can be as long as a
thousand others.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class TextCache(Generic[Value]):
    """Values by their texts; those that were asked for last."""

    def __init__(self, most_characters: int) -> None:
        """`most_characters`: of all texts together."""
        self._most = most_characters
        self._values: OrderedDict[str, Value] = OrderedDict()
        self.characters = 0

    def get(self, text: str) -> Value | None:
        found = self._values.get(text)
        if found is not None:
            self._values.move_to_end(text)
        return found

    def put(self, text: str, value: Value) -> None:
        if text not in self._values:
            self.characters += len(text)
        self._values[text] = value
        while self.characters > self._most:
            oldest, _ = self._values.popitem(last=False)
            self.characters -= len(oldest)
