"""Rows that stay in their file: an index in memory, and the row itself read when it is asked for."""

from collections.abc import Sequence
from typing import overload

from rljob_api.sections import Data
from rljob_trainer.data.index import Index, changed, state
from rljob_trainer.data.row_file import RowFile, unreadable
from rljob_trainer.data.rows import Row, row


class StoredRows(Sequence[Row]):
    """The checked rows of an indexed file. Reading raises DataError if the file has changed since."""

    def __init__(self, file: RowFile, contents: Index, data: Data, conversations: bool) -> None:
        self.contents = contents
        self._file = file
        self._data = data
        self._conversations = conversations

    def __len__(self) -> int:
        return len(self.contents.places_R)

    @overload
    def __getitem__(self, which: int) -> Row: ...
    @overload
    def __getitem__(self, which: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, which: int | slice) -> Row | tuple[Row, ...]:
        numbers = range(len(self))[which]
        if isinstance(numbers, int):
            return self.read([numbers])[0]
        return tuple(self.read(numbers))

    def read(self, rows: Sequence[int]) -> list[Row]:
        """Return these rows, reading what is next to each other in the file once."""
        if state(self._file) != self.contents.state:
            raise changed(self._file)
        try:
            found = self._file.read([self.contents.places_R[each] for each in rows])
        except OSError as error:
            raise unreadable(self._file.path, error) from error
        names = [self._file.name(self.contents.numbers_R[each]) for each in rows]
        return [row(raw, name, self._data, self._conversations) for raw, name in zip(found, names, strict=True)]
