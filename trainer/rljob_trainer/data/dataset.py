"""The questions of a run as prompts, ready to be issued: sources, template and tokenizer put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rljob_api.sections import Data
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.render import Renderer
from rljob_trainer.data.rows import Row
from rljob_trainer.data.sources import Questions, questions
from rljob_trainer.samples import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NAMED_ROWS = 5


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rendered prompts. Uids are row numbers until a stream issues them; those to measure on are `heldOut:ROW` and
    `evaluationSets/NAME:ROW`.
    """

    train: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    evaluation_sets: Mapping[str, tuple[Prompt, ...]]
    read: Questions
    """what they were rendered from"""


def dataset(
    data: Data,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_tokens: int,
    tools: Sequence[Mapping[str, Any]] = (),
    conversations: bool = False,
) -> Dataset:
    """Read and render all sets. Raises DataError, also for prompts too long to leave room for a response.

    `tools` are JSON schemas of what the model may call. With `conversations`, rows may be whole ones.
    """
    renderer = Renderer(data, tokenizer, tools)
    read = questions(data, conversations)
    return Dataset(
        train=_rendered(read.train, "", renderer, max_prompt_tokens),
        held_out=_rendered(read.held_out, "heldOut:", renderer, max_prompt_tokens),
        evaluation_sets={
            name: _rendered(rows, f"evaluationSets/{name}:", renderer, max_prompt_tokens)
            for name, rows in read.evaluation_sets.items()
        },
        read=read,
    )


def _rendered(rows: Sequence[Row], prefix: str, renderer: Renderer, max_tokens: int) -> tuple[Prompt, ...]:
    prompts = tuple(renderer.prompt(f"{prefix}{number}", row) for number, row in enumerate(rows))
    too_long = [
        f"{row.place} ({len(prompt.tokens_T)} tokens)"
        for row, prompt in zip(rows, prompts, strict=True)
        if len(prompt.tokens_T) > max_tokens
    ]
    if too_long:
        raise DataError(
            f"{len(too_long)} of {len(rows)} prompts are longer than {max_tokens} tokens, the context length less "
            f"rollout.sampling.maxNewTokens: {', '.join(too_long[:NAMED_ROWS])}{', …' * (len(too_long) > NAMED_ROWS)}. "
            "Shorten or remove them, raise rollout.contextLength, or lower maxNewTokens"
        )
    return prompts
