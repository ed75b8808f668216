"""Rules of `algorithm.name: sft`, which has neither engines nor rewards: a field of theirs would have no effect."""

from collections.abc import Iterator

from rljob_api.algorithms import SFT
from rljob_api.errors import ABSENT, Problem
from rljob_api.facts import Needs
from rljob_api.rules.batches import is_sft
from rljob_api.rules.claims import FREE_MAPPING, only_in_python, unused
from rljob_api.rules.scope import needing
from rljob_api.sections import ExtraArgs, Spec

UNUSED = f"would not be used: {SFT} learns the data's own responses; leave it out"
FREE = ("spec.extraArgs.sglang",)
"""mappings, which only Python can judge"""
WITHOUT_EFFECT = tuple(each for each in needing(Needs.ENGINES | Needs.SAMPLES) if each.at not in FREE)


@only_in_python(FREE_MAPPING)
def pass_through(spec: Spec) -> Iterator[Problem]:
    if spec.is_sft and spec.extra_args != ExtraArgs(megatron=spec.extra_args.megatron):
        yield Problem("spec.extraArgs.sglang", ABSENT, UNUSED)


RULES = (*(unused(each, ~is_sft, UNUSED, shows=False) for each in WITHOUT_EFFECT), pass_through)
