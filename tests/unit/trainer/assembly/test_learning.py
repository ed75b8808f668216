"""What the loop trains, with and without a critic."""

import pytest

from rljob_api.reading.manifest import parse
from rljob_trainer.assembly.learning import with_critic
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
