"""Sequences with their training targets, packed into token-budget micro-batches. No torch.

    sequences ─► their sizes ─► `shares.py`: the numbers of those of each micro-batch ─► micro-batches

Response tokens that the environment wrote are context like the prompt: the loss does not see them at all.

Axes: T packed tokens of a micro-batch, S its sequences, R the response tokens that are trained on.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rljob_api.sizing.flops import Work
from rljob_trainer.batches.shares import Meeting, Sizes, shared_out

UNKNOWN = -1
"""in place of an expert: the learner chooses"""


@dataclass(frozen=True, slots=True)
class ValueTargets:
    """What a critic is fitted to, for each response token of a sequence or of a micro-batch."""

    old_values: npt.NDArray[np.floating[Any]]
    """its own before the first update on these samples"""
    returns: npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One sample ready for training."""

    tokens: tuple[int, ...]
    """prompt and response"""
    prompt_length: int
    advantage: float | npt.NDArray[np.float64]
    """of all its response tokens that are trained on, or of each"""
    logprobs: tuple[float, ...]
    """the engine's log-probabilities of the response tokens that are trained on [nats]"""
    weight: float
    """weight of each of them in the loss, normalised over the whole optimizer step"""
    index: int = 0
    """the caller's number for it"""
    trained: tuple[bool, ...] = ()
    """which response tokens are trained on; empty: all"""
    value_targets: ValueTargets | None = None
    """of the response tokens that are trained on; None: there is no critic"""
    experts: npt.NDArray[np.int16] | None = None
    """experts of each layer [first tokens, L x K] that the engine used; None: the learner chooses"""

    @property
    def response_length(self) -> int:
        """Its tokens after the prompt, by model or environment."""
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True, slots=True)
class Packing:
    """How sequences become micro-batches."""

    data_parallel: int
    """ranks, or groups of them, that have separate micro-batches"""
    max_tokens: int
    """tokens of one micro-batch"""
    in_step: bool = False
    """whether all ranks need equally many micro-batches, because they meet in each"""
    multiple: int = 1
    """what the number of a rank's micro-batches is a multiple of"""
    work: Work | None = None
    """what a sequence takes, to be balanced; None: its tokens are"""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences laid end to end."""

    tokens_T: npt.NDArray[np.int64]
    cu_seqlens_S1: npt.NDArray[np.int32]
    """S + 1 offsets into tokens_T, from 0 to T"""
    positions_R: npt.NDArray[np.int64]
    """index in T of the token whose hidden state predicts each response token that is trained on"""
    targets_R: npt.NDArray[np.int64]
    """those response tokens"""
    advantages_R: npt.NDArray[np.float32]
    weights_R: npt.NDArray[np.float32]
    logprobs_R: npt.NDArray[np.float32]
    """the engine's log-probabilities of targets_R"""
    indices_S: npt.NDArray[np.int64]
    """the caller's numbers of the sequences"""
    value_targets: ValueTargets | None = None
    """of targets_R, in fp32; None: there is no critic"""
    experts_TC: npt.NDArray[np.int16] | None = None
    """experts of each layer [T, L x K] that the engine used, -1 where it did not say; None: the learner chooses"""

    @property
    def num_sequences(self) -> int:
        return len(self.indices_S)

    @property
    def sequences_R(self) -> npt.NDArray[np.int64]:
        """Which sequence each response token belongs to, from 0."""
        return np.searchsorted(self.cu_seqlens_S1[1:], self.positions_R, side="right").astype(np.int64)


def pack(sequences: Sequence[TrainingSequence], packing: Packing) -> tuple[tuple[MicroBatch, ...], ...]:
    """Return the micro-batches of each data-parallel rank.

    Every sequence is in exactly one micro-batch. None holds more than `max_tokens`, except that a longer sequence makes
    a separate one. Ranks wait for each other as little as `shares.py` says. A rank for which no sequence is left
    gets a copy of the shortest one with weight 0, because the collectives of a step need every rank; without any
    sequence all ranks get nothing. With `in_step`, all ranks get equally many micro-batches, because ranks that share
    out experts meet in each: larger ones are divided, and then such copies added. In the same way the number of a
    rank's micro-batches becomes a `multiple`, which virtual pipeline stages need. The same arguments give the same
    micro-batches.
    Raises ValueError for a sequence without a prompt, or with nothing to train on.
    """
    for sequence in sequences:
        _check(sequence)
    if not sequences:
        return ((),) * packing.data_parallel
    filler = replace(min(sequences, key=lambda sequence: len(sequence.tokens)), weight=0.0)
    meeting = Meeting(packing.data_parallel, packing.max_tokens, packing.in_step, packing.multiple)
    return tuple(
        tuple(_micro_batch([sequences[number] for number in numbers] or [filler]) for numbers in share)
        for share in shared_out(_sizes(sequences, packing.work), meeting)
    )


def _sizes(sequences: Sequence[TrainingSequence], work: Work | None) -> Sizes:
    tokens = [len(sequence.tokens) for sequence in sequences]
    prompts = [0] * len(sequences)
    for number, (before, after) in enumerate(itertools.pairwise(sequences), 1):
        if before.tokens[: before.prompt_length] == after.tokens[: after.prompt_length]:
            prompts[number] = after.prompt_length
    if work is None:
        return Sizes(tokens, prompts)
    alone = [work.of_sequence(len(sequence.tokens), len(sequence.logprobs)) for sequence in sequences]
    return Sizes(tokens, prompts, alone, [work.token * length for length in prompts])


def _check(sequence: TrainingSequence) -> None:
    trained = sequence.trained or (True,) * sequence.response_length
    if sequence.prompt_length < 1 or len(trained) != sequence.response_length:
        raise ValueError(
            f"a sequence of {len(sequence.tokens)} tokens with a prompt of {sequence.prompt_length} and a mask of "
            f"{len(trained)} cannot be trained on: it needs a prompt, and a mask as long as its response"
        )
    if not any(trained) or len(sequence.logprobs) != sum(trained):
        raise ValueError(
            f"a sequence with {sum(trained)} response tokens to train on and {len(sequence.logprobs)} "
            "log-probabilities cannot be trained on: it needs a log-probability for each, and at least one"
        )


def _micro_batch(sequences: list[TrainingSequence]) -> MicroBatch:
    lengths = [len(sequence.tokens) for sequence in sequences]
    starts = [0, *itertools.accumulate(lengths)]
    responses = [len(sequence.logprobs) for sequence in sequences]
    positions = [
        _trained(np.arange(start + sequence.prompt_length - 1, end - 1), sequence)
        for sequence, start, end in zip(sequences, starts[:-1], starts[1:], strict=True)
    ]
    tokens_T = np.fromiter(itertools.chain.from_iterable(s.tokens for s in sequences), np.int64, starts[-1])
    positions_R = np.concatenate(positions).astype(np.int64)
    return MicroBatch(
        tokens_T=tokens_T,
        cu_seqlens_S1=np.asarray(starts, np.int32),
        positions_R=positions_R,
        targets_R=tokens_T[positions_R + 1],
        advantages_R=np.concatenate(
            [
                np.broadcast_to(np.asarray(sequence.advantage, np.float32), length)
                for sequence, length in zip(sequences, responses, strict=True)
            ]
        ),
        weights_R=np.repeat(np.asarray([s.weight for s in sequences], np.float32), responses),
        logprobs_R=np.concatenate([np.asarray(s.logprobs, np.float32) for s in sequences]),
        indices_S=np.asarray([s.index for s in sequences], np.int64),
        value_targets=_joined([s.value_targets for s in sequences if s.value_targets is not None]),
        experts_TC=_experts(sequences),
    )


def _experts(sequences: list[TrainingSequence]) -> npt.NDArray[np.int16] | None:
    known = [each.experts for each in sequences if each.experts is not None]
    if not known:
        return None
    parts = []
    for sequence in sequences:
        part = np.full((len(sequence.tokens), known[0].shape[1]), UNKNOWN, np.int16)
        if sequence.experts is not None:
            part[: len(sequence.experts)] = sequence.experts[: len(part)]  # a response may have been cut after it
        parts.append(part)
    return np.concatenate(parts)


def _joined(targets: list[ValueTargets]) -> ValueTargets | None:
    if not targets:
        return None
    return ValueTargets(
        old_values=np.concatenate([each.old_values for each in targets]).astype(np.float32),
        returns=np.concatenate([each.returns for each in targets]).astype(np.float32),
    )


def _trained(values: npt.NDArray[np.int64], sequence: TrainingSequence) -> npt.NDArray[np.int64]:
    """Return, of one value for each response token, those of the tokens that are trained on."""
    return values[np.asarray(sequence.trained)] if sequence.trained else values
