"""Checkpoints of a run in an object store, beside those on its volume.

    PREFIX/iter_0000010/*              the files, as on the volume
    PREFIX/iter_0000010/run-*          journal and events of the run, as they were then
    PREFIX/iter_0000010/rljob.json     what the checkpoint says of itself, digests included; written last
    PREFIX/journal/*                   files of the journal that were full, which never change

A checkpoint without `rljob.json` is half an upload, and is never used. `rljob.json` is removed first when a checkpoint
is deleted or written again. A run that resumed from an earlier checkpoint finds later ones there: their `rljob.json`
becomes `set-aside.json`, and their files stay.

Only what is verified on the volume is uploaded. What is downloaded is compared with the digests of `rljob.json`.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_trainer.private_files import PRIVATE, write_whole
from rljob_trainer.remote.errors import DamagedObjectError, NotThereError, RemoteError
from rljob_trainer.remote.store import Reader
from rljob_trainer.remote.transfer import Transfer
from rljob_trainer.reporting import events
from rljob_trainer.rundir import journal
from rljob_trainer.rundir.atomic_files import sync_directory
from rljob_trainer.rundir.checkpoints import (
    DIRECTORY,
    MANIFEST,
    NAME,
    Checkpoint,
    CheckpointError,
    damage_of,
    digests_of,
    name_of,
    opened,
)
from rljob_trainer.rundir.names import step_in

log = logging.getLogger(__name__)

OF_THEN = "run-"
"""begins the names of files of the run beside those of a checkpoint"""
ASIDE = "set-aside.json"
RESTORING = "restoring-"
"""begins the name of a directory that is being downloaded; a start continues it"""
OF_RUN = (journal.FILE_NAME, events.FILE_NAME)
LARGEST_MANIFEST = 2**28
"""of a checkpoint of thousands of ranks [bytes]"""


class Store(Reader, Protocol):
    """What can be written to, besides."""

    def has_bucket(self, url: str) -> bool:
        """Return whether the bucket of a URL is there, as far as that can be known."""

    def write(self, url: str, content: bytes) -> None:
        """Write an object. Raises RemoteError; then there is no part of it."""

    def write_file(self, url: str, source: Path, alive: Callable[[int], None]) -> None:
        """Write an object with the content of a file; `alive` gets the bytes of each part, and may raise."""

    def remove(self, urls: list[str]) -> None:
        """Remove objects; those that are gone already do not matter."""

    def remove_below(self, url: str) -> None:
        """Remove all objects below a URL that ends in `/`."""


@dataclass(frozen=True, slots=True)
class RemoteCheckpoints:
    """The checkpoints at one place of a store. Methods raise RemoteError, and OSError of the volume."""

    store: Store
    prefix: str
    """URL that ends in `/`"""

    def whole(self) -> dict[int, str]:
        """Return the URLs of all whole checkpoints by their steps. Raises NotThereError if there is no bucket."""
        return {step: f"{self.prefix}{name_of(step)}/" for step, names in self._listed().items() if MANIFEST in names}

    def upload(self, run: Path, path: Path, keep: int, alive: Callable[[int], None]) -> None:
        """Upload a checkpoint of the volume unless it is there, and remove all but the newest `keep`.

        `alive` is called with the bytes that were sent since, and may raise.
        """
        manifest = (path / MANIFEST).read_bytes()
        place, step = f"{self.prefix}{path.name}/", step_in(path.name)
        if self._content(place + MANIFEST) != manifest:
            # First what says that it is whole: files of two checkpoints must not be taken for one.
            self.store.remove([place + MANIFEST, place + ASIDE])
            self._upload_records(run, place, alive)
            checkpoint = opened(manifest.decode())
            for name in checkpoint.files:
                self.store.write_file(place + name, path / name, alive)
            self._verify(place, {name: (path / name).stat().st_size for name in checkpoint.files})
            self._set_aside_after(step)
            self.store.write(place + MANIFEST, manifest)
            log.info("action=upload checkpoint=%s to=%s", path.name, place)
        self._thin_out(keep)

    def restore(self, run: Path, step: int | None, alive: Callable[[int], None]) -> Path | None:
        """Download a checkpoint into a run's directory that has none: of a step, or the newest intact one.

        Returns its directory; None: there is none. Raises CheckpointError if none is intact.
        """
        there = self.whole()
        wanted = sorted((each for each in there if step in (None, each)), reverse=True)
        damaged = []
        for each in wanted:
            try:
                return self._restored(run, each, there[each], alive)
            except (CheckpointError, DamagedObjectError) as error:
                log.error("action=skip checkpoint=%s reason=Damaged %s", there[each], error)
                damaged.append(str(error))
        if damaged:
            raise CheckpointError(f"spec.checkpoint.remote: no checkpoint can be read: {'; '.join(damaged)}")
        return None

    def _restored(self, run: Path, step: int, place: str, alive: Callable[[int], None]) -> Path:
        transfer = Transfer(self.store, alive)
        content = self._content(place + MANIFEST)
        if content is None:
            raise CheckpointError(f"{place}: was removed meanwhile")
        try:
            checkpoint = opened(content.decode())
        except ValueError as error:
            raise CheckpointError(f"{place}{MANIFEST}: cannot be read: {error}") from error
        draft = run / DIRECTORY / f"{RESTORING}{name_of(step)}"
        draft.mkdir(parents=True, exist_ok=True)
        _require_room(draft, place, checkpoint)
        for name in checkpoint.files:
            transfer.fetch(transfer.item(place + name), draft / name)
        found = digests_of(draft, checkpoint.files)
        if damage := damage_of(draft.with_name(name_of(step)), checkpoint, found):
            shutil.rmtree(draft)
            raise CheckpointError(f"{place}: {damage}")
        self._restore_records(run, place, transfer)
        write_whole(draft / MANIFEST, content)
        target = draft.with_name(name_of(step))
        sync_directory(draft)
        draft.rename(target)
        sync_directory(target.parent)
        log.info("action=restore checkpoint=%s from=%s", target.name, place)
        return target

    def _restore_records(self, run: Path, place: str, transfer: Transfer) -> None:
        older = (f"{journal.OLDER}/{name}" for name in self._names(journal.OLDER))
        urls = {name: self.prefix + name for name in older} | {name: f"{place}{OF_THEN}{name}" for name in OF_RUN}
        for name, url in urls.items():
            try:
                item = transfer.item(url)
            except NotThereError:
                continue  # a run can have no events yet
            (run / name).unlink(missing_ok=True)  # what a run without a checkpoint had begun
            transfer.fetch(item, run / name)
            (run / name).chmod(PRIVATE)

    def _upload_records(self, run: Path, place: str, alive: Callable[[int], None]) -> None:
        there = set(self._names(journal.OLDER))
        for path in sorted((run / journal.OLDER).glob("*.jsonl")):
            if path.name not in there:
                self.store.write_file(f"{self.prefix}{journal.OLDER}/{path.name}", path, alive)
        for name in OF_RUN:
            if (run / name).is_file():
                self.store.write_file(f"{place}{OF_THEN}{name}", run / name, alive)

    def _verify(self, place: str, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            if (found := self.store.item(place + name).size) != size:
                raise RemoteError(f"{place}{name}: has {found} bytes after its upload; {size} were sent")

    def _set_aside_after(self, step: int) -> None:
        for later, place in self.whole().items():
            if later > step:
                self.store.write(place + ASIDE, self._content(place + MANIFEST) or b"")
                self.store.remove([place + MANIFEST])
                log.warning("action=set_aside checkpoint=%s reason=LaterThan step=%d", place, step)

    def _thin_out(self, keep: int) -> None:
        """Remove all whole checkpoints but the newest, and half uploads that are older than these."""
        listed = self._listed()
        kept = sorted((step for step, names in listed.items() if MANIFEST in names), reverse=True)[:keep]
        for step, names in listed.items():
            if step not in kept and step < max(kept, default=0) and ASIDE not in names:
                place = f"{self.prefix}{name_of(step)}/"
                self.store.remove([place + MANIFEST])
                self.store.remove_below(place)

    def _listed(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for name in self._names(""):
            directory, _, rest = name.partition("/")
            if NAME.fullmatch(directory) and rest:
                found.setdefault(step_in(directory), []).append(rest)
        return found

    def _names(self, below: str) -> list[str]:
        url = f"{self.prefix}{below}/" if below else self.prefix
        try:
            return self.store.names(url)
        except NotThereError:
            if not self.store.has_bucket(url):
                raise
            return []

    def _content(self, url: str) -> bytes | None:
        try:
            item = self.store.item(url)
        except NotThereError:
            return None
        if item.size > LARGEST_MANIFEST:
            raise RemoteError(f"{url}: has {item.size} bytes; {LARGEST_MANIFEST} are the most")
        return self.store.read(item, 0, item.size)


def _require_room(draft: Path, place: str, checkpoint: Checkpoint) -> None:
    there = sum(path.stat().st_size for path in draft.iterdir() if path.is_file())
    missing, room = sum(checkpoint.sizes.values()) - there, shutil.disk_usage(draft).free
    if missing > room:
        raise RemoteError(f"{place}: {missing / 1e9:.2f} GB are to be restored, and {draft} has {room / 1e9:.2f} GB")
