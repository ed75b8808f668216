"""What the loop trains, with and without a critic."""

import pytest

from rljob_api.reading.manifest import parse
from rljob_api.sections import Placement
from rljob_api.sizing.topology import Sizes, lay_out
from rljob_trainer.assembly.learning import ranks_beside, with_critic
from support.trainer.whole_run import manifest

PPO = {"name": "ppo", "critic": {"learningRate": 4e-5, "clipGrad": 0.5, "valueClip": 0.3, "warmupSteps": 5}}


def spec_of_ppo(directory):
    optimizer = {"learningRate": 2e-5, "minLearningRate": 1e-6, "schedule": "Cosine", "warmupSteps": 3, "beta2": 0.9}
    training = {"steps": 20, "stepsPerRollout": 2, "precision": "fp32", "optimizer": optimizer}
    return parse(manifest(directory, directory, algorithm=PPO, training=training)).spec


@pytest.mark.parametrize(("first", "alone"), [(0, 5), (3, 2), (5, 0), (9, 0)])
def test_a_resumed_run_gives_the_critic_the_rest_of_its_rollouts_alone(tmp_path, first, alone):
    assert with_critic(None, spec_of_ppo(tmp_path), first).critic_only == alone


def test_without_a_critic_the_loop_trains_the_learner_itself(tmp_path):
    learner = object()
    assert with_critic(learner, parse(manifest(tmp_path, tmp_path)).spec, 0) is learner


def test_every_slot_of_a_colocated_engine_has_its_rank_of_the_learner():
    placed = lay_out(Sizes(Placement.COLOCATED, 2, 4, 2, 2, engines=3, gpus_per_engine=2))
    assert ranks_beside(placed) == {"engine-0": (0, 1), "engine-1": (2, 3), "engine-2": (4, 5)}
