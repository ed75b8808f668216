"""One version of the weights as files: the learner's rank writes them, the driver passes their names on, and the actor
of each engine reads them, see `actor/weight_copy.py`. Values only.
"""

from dataclasses import dataclass
from pathlib import Path

import xxhash

from rljob_trainer.engines.weight_delta import Bytes


@dataclass(frozen=True, slots=True)
class Delta:
    """A file that leads from one version to another."""

    base: str
    """digest of the weights that it changes"""
    digest: str
    """of the file"""
    nbytes: int


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """One version of the weights, as the learner offers it in a directory that the machines of engines see."""

    directory: Path
    digest: str
    """of all its bytes as a safetensors file"""
    nbytes: int
    delta: Delta | None
    """None: there is no earlier version, or nothing has changed, or a delta would not be much smaller"""
    offer: str
    """names this publication: the same version may be offered again"""

    @property
    def whole_path(self) -> Path:
        """Where the weights are; written when an engine needs them."""
        return self.directory / f"whole-{self.digest}"

    @property
    def delta_path(self) -> Path:
        """Where the delta is."""
        return self.directory / f"delta-{self.digest}"


def digest(content: Bytes | bytes) -> str:
    """Return xxh3 (128 bits, hexadecimal)."""
    return xxhash.xxh3_128_hexdigest(content if isinstance(content, bytes) else content.data)
