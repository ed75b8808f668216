"""The responses that the data has to its own questions, as tokens to learn: those of the assistant."""

from collections.abc import Sequence

from rljob_trainer.data.lengths import require_room
from rljob_trainer.data.read_ahead import Held, MadeOfRows, ReadAhead
from rljob_trainer.data.render import Renderer, SftResponse
from rljob_trainer.data.rows import Row
from rljob_trainer.data.stored_rows import StoredRows


def references(rows: Sequence[Row], renderer: Renderer, longest: int) -> MadeOfRows[SftResponse]:
    """Return the response of each row; those of rows that stay in their file are made before they are needed.

    Raises DataError, also where one is longer than `longest` tokens; of stored rows, those that are longest are made to
    see that, and the others when their turn comes.
    """
    if not isinstance(rows, StoredRows):
        return Held(_checked(rows, renderer, longest))
    _checked(rows.read(rows.contents.longest_labels), renderer, longest)
    return ReadAhead(rows, lambda row: _checked((row,), renderer, longest)[0])


def _checked(rows: Sequence[Row], renderer: Renderer, longest: int) -> tuple[SftResponse, ...]:
    found = tuple(renderer.reference(row) for row in rows)
    lengths = [len(reference.tokens_T) for reference in found]
    limit = f"rollout.sampling.maxNewTokens {longest}"
    require_room(rows, lengths, longest, what="responses", limit=limit, advice="Raise it, or remove them")
    return found
