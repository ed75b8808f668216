"""The questions of a run as prompts, ready to be issued: sources, template and tokenizer put together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rljob_api.sections import Data
from rljob_trainer.data.lengths import require_room
from rljob_trainer.data.prompts import PromptStream, identity
from rljob_trainer.data.read_ahead import Held, MadeOfRows, ReadAhead
from rljob_trainer.data.render import Renderer
from rljob_trainer.data.rows import Row
from rljob_trainer.data.sources import Questions, questions
from rljob_trainer.data.stored_rows import StoredRows
from rljob_trainer.samples import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIRST = 64
"""stored rows whose prompts stand for how all are rendered; part of the fingerprint with which a run resumes"""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rendered prompts. Uids are row numbers until a stream issues them; those to measure on are `heldOut:ROW` and
    `evaluationSets/NAME:ROW`.
    """

    train: MadeOfRows[Prompt]
    held_out: tuple[Prompt, ...]
    evaluation_sets: Mapping[str, tuple[Prompt, ...]]
    read: Questions
    """what they were rendered from"""
    content: bytes | None = None
    """stands for all training prompts where they are not all here; None: they are"""

    def stream(self, *, seed: int, shuffle: bool) -> PromptStream:
        """Return the training prompts at the beginning of the first epoch."""
        return PromptStream(self.train, seed=seed, shuffle=shuffle, content=self.content)


def dataset(
    data: Data,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_tokens: int,
    tools: Sequence[Mapping[str, Any]] = (),
    conversations: bool = False,
) -> Dataset:
    """Read and render all sets. Raises DataError, also for prompts too long to leave room for a response.

    Training rows that stay in their file are rendered before they are needed, with `tokenizer`, which no other code may
    use then. Those with most characters are rendered here, so that a prompt too long is mostly an error now.
    `tools` are JSON schemas of what the model may call. With `conversations`, rows may be whole ones.
    """
    renderer = Renderer(data, tokenizer, tools)
    read = questions(data, conversations)
    train, content = _train(read.train, renderer, max_prompt_tokens)
    return Dataset(
        train=train,
        held_out=_rendered(read.held_out, "heldOut:", renderer, max_prompt_tokens),
        evaluation_sets={
            name: _rendered(rows, f"evaluationSets/{name}:", renderer, max_prompt_tokens)
            for name, rows in read.evaluation_sets.items()
        },
        read=read,
        content=content,
    )


def _train(rows: Sequence[Row], renderer: Renderer, max_tokens: int) -> tuple[MadeOfRows[Prompt], bytes | None]:
    """Return the prompts, and what stands for all of them; of stored rows only some are rendered now."""
    if not isinstance(rows, StoredRows):
        return Held(_rendered(rows, "", renderer, max_tokens)), None
    _rendered(rows.read(rows.contents.longest_questions), "", renderer, max_tokens)
    first = _rendered(rows[:FIRST], "", renderer, max_tokens)
    pieces = (rows.contents.digest, rows.contents.places_R.tobytes(), *map(identity, first))
    content = hashlib.sha256(b"".join(pieces)).digest()
    return ReadAhead(rows, lambda row: _rendered((row,), "", renderer, max_tokens)[0]), content


def _rendered(rows: Sequence[Row], prefix: str, renderer: Renderer, max_tokens: int) -> tuple[Prompt, ...]:
    prompts = tuple(renderer.prompt(f"{prefix}{number}", row) for number, row in enumerate(rows))
    require_room(
        rows,
        [len(prompt.tokens_T) for prompt in prompts],
        max_tokens,
        what="prompts",
        limit=f"{max_tokens} tokens, the context length less rollout.sampling.maxNewTokens",
        advice="Shorten or remove them, raise rollout.contextLength, or lower maxNewTokens",
    )
    return prompts
