"""What a run wraps around the loop's parts, and in which order."""

from types import SimpleNamespace

import pytest

from rljob_api.reading.manifest import parse
from rljob_trainer.algorithms.factory import algorithm
from rljob_trainer.assembly.decorators import Core, Decorator, decorated, decorators
from rljob_trainer.reporting.losses import Losses
from rljob_trainer.rewards.overlong import Shaped
from rljob_trainer.rewards.truncated import masked
from rljob_trainer.rollouts.dynamic_sampling import DynamicRollouts, ReportWithDropped
from rljob_trainer.rollouts.first_step import FirstStep
from rljob_trainer.rollouts.lost_samples import LeavingOut
from rljob_trainer.rollouts.recorded import Dumping
from support.trainer.whole_run import manifest

DYNAMIC = {"dynamicSampling": {"overSample": 1.5}}
DUMP = {"dumpRollouts": True}
MASK = {"maskTruncated": True}


LOST = "LEAVING_OUT"


def spec_of(directory, **sections):
    return parse(manifest(directory, directory, **sections)).spec


@pytest.mark.parametrize(
    ("sections", "first", "expected"),
    [
        ({}, 3, [LOST, "SHAPING"]),
        ({}, 0, [LOST, "SHAPING", "FIRST_STEP"]),
        ({"debug": DUMP}, 3, ["DUMPING", LOST, "SHAPING"]),
        ({"algorithm": DYNAMIC}, 3, [LOST, "DYNAMIC_SAMPLING", "SHAPING"]),
        ({"algorithm": MASK}, 3, [LOST, "MASKING", "SHAPING"]),
        ({"algorithm": MASK | DYNAMIC, "debug": DUMP}, 3, ["DUMPING", LOST, "MASKING", "DYNAMIC_SAMPLING", "SHAPING"]),
        ({"algorithm": DYNAMIC, "debug": DUMP}, 0, ["DUMPING", LOST, "DYNAMIC_SAMPLING", "SHAPING", "FIRST_STEP"]),
    ],
)
def test_a_run_wraps_what_its_manifest_and_first_step_ask_for(sections, first, expected, tmp_path):
    assert [decorator.name for decorator in decorators(spec_of(tmp_path, **sections), first)] == expected


def test_sft_shows_its_first_responses_instead_of_comparing_with_engines(tmp_path):
    spec = spec_of(tmp_path)
    sft = spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update={"name": "sft"})})
    assert decorators(sft, 0) == (Decorator.SHAPING, Decorator.FIRST_REFERENCES)
    assert decorators(sft, 1) == (Decorator.SHAPING,)


def wrapped(spec, order) -> Core:
    """Return all parts, each replaced by its name, with decorators around them."""
    report = SimpleNamespace(first_step=None)
    foundation = SimpleNamespace(spec=spec, report=report, losses=Losses())
    material = SimpleNamespace(dump="dump", made={}, fingerprint="", algorithm=algorithm(spec.algorithm))
    learner = SimpleNamespace(logprobs=None)
    core = Core(rollouts="engines", rewards="judge", learner="learner", report=report)
    return decorated(core, order, foundation, material, learner)


def test_a_dump_holds_what_engines_made_and_the_reward_judged(tmp_path):
    spec = spec_of(tmp_path, algorithm=DYNAMIC, debug=DUMP)
    core = wrapped(spec, decorators(spec, 0))
    assert isinstance(core.rollouts, DynamicRollouts)
    leaving = core.rollouts.source
    assert isinstance(leaving, LeavingOut)
    assert leaving is core.rollouts.rewards
    assert isinstance(leaving.source, Dumping)
    assert leaving.source is leaving.rewards
    assert (leaving.source.source, leaving.source.rewards) == ("engines", "judge")


def test_truncated_samples_are_masked_after_the_dump_and_before_groups_are_chosen(tmp_path):
    spec = spec_of(tmp_path, algorithm=DYNAMIC | MASK, debug=DUMP)
    core = wrapped(spec, decorators(spec, 3))
    masking = core.rollouts.rewards
    assert (masking.shape, core.rollouts.source) == (masked, masking.rewards)
    assert isinstance(masking.rewards, LeavingOut)


def test_groups_are_chosen_before_their_rewards_are_shaped(tmp_path):
    spec = spec_of(tmp_path, algorithm=DYNAMIC)
    core = wrapped(spec, decorators(spec, 3))
    assert isinstance(core.rewards, Shaped)
    assert core.rewards.rewards is core.rollouts


def test_the_first_step_is_looked_at_from_outside_all_others(tmp_path):
    spec = spec_of(tmp_path, algorithm=DYNAMIC)
    core = wrapped(spec, decorators(spec, 0))
    assert isinstance(core.learner, FirstStep)
    assert core.report is core.learner
    assert isinstance(core.learner.report, ReportWithDropped)
