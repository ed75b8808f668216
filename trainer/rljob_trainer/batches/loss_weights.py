"""How the losses of tokens become the loss of an optimizer step: a weight for the tokens of each sample. Pure.

    loss = sum over samples i and tokens t of weight_i x loss_i,t

Weights belong to the whole step, so any split of its samples over micro-batches and ranks adds up to the same loss.
Samples are those that have tokens to train on: one that is kept out of the loss does not lower that of the others.
"""

from collections.abc import Callable, Sequence
from functools import partial

from rljob_api import sections
from rljob_api.sections import LossBy

Aggregation = Callable[[Sequence[int]], tuple[float, ...]]
"""from the response lengths of a step's samples [tokens] to the weight of each token of each sample"""


def by_token(lengths: Sequence[int]) -> tuple[float, ...]:
    """Every token counts the same: 1 / tokens of the step (DAPO, https://arxiv.org/abs/2503.14476)."""
    total = sum(lengths)
    return tuple(1.0 / total if length else 0.0 for length in lengths)


def by_sample(lengths: Sequence[int]) -> tuple[float, ...]:
    """Every sample counts the same, shared by its tokens: 1 / (samples x its length), as in GRPO's paper."""
    return tuple(1.0 / (length * _trained(lengths)) if length else 0.0 for length in lengths)


def by_constant(longest: int, lengths: Sequence[int]) -> tuple[float, ...]:
    """Every token counts 1 / (samples x `longest`), however long its sample is (Dr. GRPO,
    https://arxiv.org/abs/2503.20783): the weights of a step add up to 1 only if all responses are that long.
    """
    return tuple(1.0 / (longest * _trained(lengths)) if length else 0.0 for length in lengths)


def _trained(lengths: Sequence[int]) -> int:
    return sum(map(bool, lengths))


def aggregation(spec: sections.Spec) -> Aggregation:
    """Return what `algorithm.lossBy` names."""
    match spec.algorithm.loss_by:
        case LossBy.TOKEN:
            return by_token
        case LossBy.SAMPLE:
            return by_sample
        case LossBy.CONSTANT:
            return partial(by_constant, spec.rollout.sampling.max_new_tokens)
