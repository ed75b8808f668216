"""What samples from engines in step with training, and beside it."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from rljob_api.reading.manifest import parse
from rljob_trainer.assembly.engine_sampling import EngineSampling
from rljob_trainer.assembly.fleet import CatchUp
from rljob_trainer.engines.carrying import Carrying, Gated
from rljob_trainer.reporting.losses import Outage
from rljob_trainer.rollouts.asynchronous import AsyncRollouts
from rljob_trainer.rollouts.evaluation import NoHeldOut
from rljob_trainer.rollouts.synchronous import SyncRollouts
from rljob_trainer.sync.gated_weights import GatedWeights
from rljob_trainer.sync.gpu_sharing import LeavingLearner
from rljob_trainer.sync.weights import EngineWeights
from support.trainer.whole_run import manifest

GATED = {"maxStaleness": 2, "updateInterval": 2}


class Learning:
    """Notes what is published first, and whether engines that return could catch up by then."""

    group = SimpleNamespace(check=None)

    def __init__(self, catch_up: CatchUp) -> None:
        self.catch_up = catch_up

    def transport(self, receivers):
        return f"transport to {receivers}"

    def gpu_sharing(self, weights, pool):
        return weights

    def published(self, weights, first):
        self.first, self.could_catch_up = first, self.catch_up.publisher is not None
        return weights

    def trained(self, gpu_sharing):
        raise NotImplementedError


@pytest.fixture
def stage(tmp_path, tiny_llama_dir):
    def begin(asynchronous=None, sharing=None):
        sections = {"placement": "Disaggregated", "rollout": {"async": asynchronous}} if asynchronous else {}
        spec = parse(manifest(tiny_llama_dir, tmp_path, **sections)).spec
        foundation = SimpleNamespace(
            spec=spec, background="loop", stack=ExitStack(), status_store=SimpleNamespace(beat=None), outage=Outage
        )
        material = SimpleNamespace(model=tiny_llama_dir, first=4, data=SimpleNamespace(held_out=()))
        pool = SimpleNamespace(cut="cut", serving_urls=None)
        fleet = SimpleNamespace(pool=pool, hosts="hosts", client="client", catch_up=CatchUp(), sharing=sharing)
        learning = Learning(fleet.catch_up)
        sampling = EngineSampling(foundation, material, SimpleNamespace(begin=None), None, fleet, None)
        return sampling.sampled("scheduler", learning), learning

    return begin


def test_a_learner_in_turns_meets_the_engines_before_the_first_publication(stage):
    sharing = LeavingLearner()
    _, learning = stage(sharing=sharing)
    assert sharing.learner is learning.group


def test_rollouts_wait_for_the_weights_of_their_step(stage):
    sampled, _ = stage()
    assert isinstance(sampled.rollouts, SyncRollouts)
    assert isinstance(sampled.weights, EngineWeights)
    assert sampled.weights.publisher.transport == "transport to hosts"
    assert isinstance(sampled.evaluation, NoHeldOut)


def test_asynchronous_rollouts_and_publications_share_a_gate(stage):
    sampled, _ = stage(GATED)
    assert isinstance(sampled.rollouts, AsyncRollouts)
    assert isinstance(sampled.weights, GatedWeights)
    router = sampled.rollouts.sampler.generator.router
    assert isinstance(router, Gated)
    assert router.gate is sampled.weights.gate
    assert (sampled.rollouts.max_staleness, sampled.weights.cut) == (2, None)


def test_partial_rollouts_are_cut_by_a_publication_and_carried_over_it(stage):
    sampled, _ = stage(GATED | {"partial": True})
    assert sampled.weights.cut == "cut"
    assert isinstance(sampled.rollouts.sampler.generator.router, Carrying)


@pytest.mark.parametrize("asynchronous", [None, GATED])
def test_engines_that_return_can_catch_up_from_the_first_publication_on(stage, asynchronous):
    _, learning = stage(asynchronous)
    assert (learning.first, learning.could_catch_up) == (4, True)
