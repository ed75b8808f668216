"""Sequences with their training targets, packed into token-budget micro-batches. No torch.

Axes: T packed tokens of a micro-batch, S its sequences, R its response tokens (those that the loss sees).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sample ready for training."""

    tokens: tuple[int, ...]
    """prompt and response"""
    prompt_length: int
    advantage: float
    logprobs: tuple[float, ...]
    """the engine's log-probabilities of the response tokens [nats]"""
    weight: float
    """weight of each of its response tokens in the loss; the weights of a whole optimizer step add up to 1"""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences laid end to end."""

    tokens_T: npt.NDArray[np.int64]
    cu_seqlens_S1: npt.NDArray[np.int32]
    """S + 1 offsets into tokens_T, from 0 to T"""
    positions_R: npt.NDArray[np.int64]
    """index in T of the token whose hidden state predicts each response token"""
    targets_R: npt.NDArray[np.int64]
    """the response tokens"""
    advantages_R: npt.NDArray[np.float32]
    weights_R: npt.NDArray[np.float32]
    logprobs_R: npt.NDArray[np.float32]
    """the engine's log-probabilities of targets_R"""
