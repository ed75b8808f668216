"""Truncated responses kept out of the loss: DAPO's overlong filtering, https://arxiv.org/abs/2503.14476, section 3.4.

The reward of a response that was cut off says little about its tokens: with more room it might have become right.
Masked, its tokens have no loss, and neither they nor the sample are in what losses are divided by. Its reward counts in
its group's mean and deviation all the same: it did not answer, and without it the baseline would be that of the
shorter responses alone. TRL (`mask_truncated_completions`), NeMo-RL (`overlong_filtering`) and Miles
(`mask_truncated`) do the same.

A response is truncated when its last answer reached `maxNewTokens` or the context's end, or when a limit has ended its
tools or its session. Evaluations do not know it: there the question is whether an answer is right.
"""

from dataclasses import replace

from rljob_trainer.samples import Group, Sample, ScoredGroup


def masked(scored: ScoredGroup) -> ScoredGroup:
    """Return the group with its truncated samples kept out of the loss; all rewards stay."""
    return replace(scored, group=masked_group(scored.group))


def masked_group(group: Group) -> Group:
    """Return a group that is not judged in the same way."""
    return replace(group, samples_G=tuple(map(_masked, group.samples_G)))


def _masked(sample: Sample) -> Sample:
    return replace(sample, dropped=True) if sample.is_truncated else sample
