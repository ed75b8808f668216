"""What must hold for `algorithm.name: sft`, which has neither engines nor rewards; `rules.py` has the other rules.

A field that would have no effect is refused, as everywhere.
"""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from rljob_api.algorithms import SFT
from rljob_api.cel import Cel, also_in_cel, in_cel, only_in_python, value
from rljob_api.errors import ABSENT, Problem
from rljob_api.sections import (
    Algorithm,
    Data,
    Debug,
    Evaluation,
    ExtraArgs,
    Recovery,
    Reward,
    Rollout,
    Sampling,
    Section,
    Spec,
    Training,
    Watch,
    WeightSync,
)

UNUSED = f"would not be used: {SFT} learns the data's own responses, without engines and rewards; leave it out"

LEFT_OUT: tuple[tuple[str, type[Section], tuple[str, ...]], ...] = (
    ("data", Data, ("evaluation_sets", "metadata_key")),
    ("reward", Reward, tuple(Reward.model_fields)),
    (
        "algorithm",
        Algorithm,
        ("clip_low", "clip_high", "dual_clip", "kl", "importance_sampling", "overlong", "dynamic_sampling"),
    ),
    (
        "rollout",
        Rollout,
        (
            "samples_per_prompt",
            "engines",
            "gpus_per_engine",
            "memory_fraction",
            "max_total_tokens",
            "router_policy",
            "request_timeout_seconds",
            "generate",
            "generate_timeout_seconds",
            "tools",
            "overflow",
            "asynchronous",
        ),
    ),
    ("rollout.sampling", Sampling, ("temperature", "top_p", "top_k", "stop", "stop_token_ids")),
    ("training", Training, ("steps_per_rollout", "global_batch_size")),
    ("evaluation", Evaluation, ("samples_per_prompt", "greedy")),
    ("weight_sync", WeightSync, tuple(WeightSync.model_fields)),
    ("recovery", Recovery, ("engine_restarts",)),
    ("watch", Watch, ("reward_drop", "entropy_share", "truncated", "no_signal", "mismatch", "staleness", "data_wait")),
    ("debug", Debug, tuple(Debug.model_fields)),
)
"""sections, and their fields that have no effect"""


def unused_cel(section: str, field: FieldInfo) -> Cel:
    path = f"{section}.{field.alias}"
    place = f"self.{section}.{in_cel(field.alias or '')}"
    default = field.get_default(call_default_factory=True)
    match default:
        case None:
            same = f"!has({place})"
        case ():
            same = f"{place}.size() == 0"
        case _:
            same = f"{place} == {value(default)}"
    return Cel(f"spec.{path}", f"!($imitates) || {same}", UNUSED)


def alias(section: str) -> str:
    """Return what a path of sections is called in a manifest."""
    return ".".join(map(to_camel, section.split(".")))


@also_in_cel(
    *(unused_cel(alias(section), model.model_fields[name]) for section, model, names in LEFT_OUT for name in names)
)
def imitation(spec: Spec) -> Iterator[Problem]:
    if not spec.imitates:
        return
    for section, model, names in LEFT_OUT:
        part: object = spec
        for name in section.split("."):
            part = getattr(part, name)
        for name in names:
            field = model.model_fields[name]
            if getattr(part, name) != field.get_default(call_default_factory=True):
                yield Problem(f"spec.{alias(section)}.{field.alias}", ABSENT, UNUSED)


@only_in_python("the API server does not see into free mappings")
def imitation_in_python(spec: Spec) -> Iterator[Problem]:
    if spec.imitates and spec.extra_args != ExtraArgs(megatron=spec.extra_args.megatron):
        yield Problem("spec.extraArgs.sglang", ABSENT, UNUSED)
