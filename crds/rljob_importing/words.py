"""Words of a launch script or values of a configuration file, each with its origin."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, expanded."""

    text: str
    """the text; a part that is not known stands as it is in the script, `${BASE}/model`"""
    line: int
    file: str = ""
    """file of the word, as the script names it; empty: the script itself"""
    unknown: tuple[str, ...] = ()
    """reasons why parts of the text are not known"""


@dataclass(frozen=True, slots=True)
class Given:
    """One argument or setting of another system."""

    name: str
    """without dashes in front: `rollout-batch-size`, `actor_rollout_ref.rollout.n`"""
    words: tuple[Word, ...]
    """its values"""
    shown: str
    """as its author wrote it: `--rollout-batch-size 32`"""
    line: int
    file: str = ""

    @property
    def place(self) -> str:
        """`line 12`, or `models/qwen3-4B.sh line 3`."""
        return f"{self.file} line {self.line}".strip()

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(reason for word in self.words for reason in word.unknown)

    @property
    def text(self) -> str:
        """The values as one text."""
        return " ".join(word.text for word in self.words)
