"""Rules of `algorithm.name: sft`, which has neither engines nor rewards: a field of theirs would have no effect."""

from collections.abc import Iterator

from rljob_api.algorithms import SFT
from rljob_api.errors import ABSENT, Problem
from rljob_api.rules.batches import is_sft
from rljob_api.rules.claims import FREE_MAPPING, only_in_python, unused
from rljob_api.rules.terms import SPEC, fields_of
from rljob_api.sections import ExtraArgs, Spec

UNUSED = f"would not be used: {SFT} learns the data's own responses, without engines and rewards; leave it out"
WITHOUT_EFFECT = (
    *fields_of(SPEC.data, "evaluation_sets", "metadata_key"),
    *fields_of(SPEC.reward),
    *fields_of(SPEC.algorithm, "clip_low", "clip_high", "dual_clip", "kl", "importance_sampling"),
    *fields_of(SPEC.algorithm, "overlong", "dynamic_sampling"),
    *fields_of(SPEC.rollout, "samples_per_prompt", "engines", "gpus_per_engine", "memory_fraction", "max_total_tokens"),
    *fields_of(SPEC.rollout, "router_policy", "request_timeout_seconds", "generate", "generate_timeout_seconds"),
    *fields_of(SPEC.rollout, "tools", "overflow", "asynchronous", "quantization"),
    *fields_of(SPEC.rollout.sampling, "temperature", "top_p", "top_k", "stop", "stop_token_ids"),
    *fields_of(SPEC.training, "steps_per_rollout", "global_batch_size", "offload"),
    SPEC.training.experts.replay,
    *fields_of(SPEC.evaluation, "samples_per_prompt", "greedy"),
    *fields_of(SPEC.weight_sync),
    *fields_of(SPEC.recovery, "engine_restarts"),
    *fields_of(
        SPEC.watch, "reward_drop", "entropy_share", "truncated", "no_signal", "mismatch", "staleness", "data_wait"
    ),
    *fields_of(SPEC.debug, "dump_rollouts", "replay", "rollout_only"),
)


@only_in_python(FREE_MAPPING)
def pass_through(spec: Spec) -> Iterator[Problem]:
    if spec.is_sft and spec.extra_args != ExtraArgs(megatron=spec.extra_args.megatron):
        yield Problem("spec.extraArgs.sglang", ABSENT, UNUSED)


RULES = (*(unused(each, ~is_sft, UNUSED, shows=False) for each in WITHOUT_EFFECT), pass_through)
