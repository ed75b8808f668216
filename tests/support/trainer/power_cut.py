"""A disk that may lose its power: what it holds then is what was flushed before.

A flushed file keeps its content and the name that it had. A rename or a removal lasts once its directory is flushed.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path


class PowerCut(BaseException):
    """The machine stops here."""


@dataclass
class Disk:
    """Takes the place of `os.fsync`; loses its power at the flush after `flushes` of them, if that is given."""

    flushes: int | None = None
    contents: dict[int, bytes] = field(default_factory=dict)
    """by inode"""
    entries: dict[int, dict[str, int]] = field(default_factory=dict)
    """by a directory's inode: the inodes of what it lists"""

    def fsync(self, descriptor: int) -> None:
        if self.flushes is not None:
            if not self.flushes:
                raise PowerCut
            self.flushes -= 1
        path, inode = Path(f"/proc/self/fd/{descriptor}").readlink(), os.fstat(descriptor).st_ino
        if path.is_dir():
            self.entries[inode] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
        else:
            self.contents[inode] = path.read_bytes()
            self.entries.setdefault(path.parent.stat().st_ino, {})[path.name] = inode

    def restore(self, directory: Path, copy: Path) -> None:
        """Write what `directory` holds after the power cut to `copy`."""
        self._restore(directory.stat().st_ino, copy)

    def _restore(self, inode: int, copy: Path) -> None:
        if inode in self.entries:
            copy.mkdir(exist_ok=True)
            for name, entry in self.entries[inode].items():
                self._restore(entry, copy / name)
        else:
            copy.write_bytes(self.contents.get(inode, b""))
