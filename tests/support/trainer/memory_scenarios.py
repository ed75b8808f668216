"""What a rank does whose state leaves the device. Runs once in every rank; results travel back by pickle."""

from pathlib import Path
from typing import Any

from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.rank import LearnerRank
from support.trainer import learner_scenarios
from support.trainer.learner_scenarios import Steps, look, weights


def train_and_leave(
    rank: int, world_size: int, port: int, config: LearnerConfig, directory: Path, steps: Steps
) -> dict[str, Any]:
    """Do everything that a rank does in a run, and leave the device after each of it; return all that was found."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    share = learner_scenarios._share(learner, steps[0], 64)

    def then_leaves(value: Any, *, weights: bool = True) -> Any:
        learner.leave(weights)
        return value

    then_leaves(None)
    found: dict[str, Any] = {"logprobs": then_leaves(learner.logprobs(share))}
    found["steps"] = [
        then_leaves(learner_scenarios._step(learner, each, 64, False), weights=bool(index))
        for index, each in enumerate(steps)
    ]
    if config.critic:
        found["critic"] = [then_leaves(learner.train_critic(share)), then_leaves(learner.values(share))]
    found["weights"] = then_leaves(weights(learner))
    then_leaves(learner_scenarios.save(learner, directory))
    found["again"] = then_leaves(learner_scenarios._step(learner, steps[0], 64, False))
    then_leaves(learner_scenarios.load(learner, directory))
    learner._state.need(optimizer=True)  # what follows looks into the rank
    learner._state.need_optimizer()
    return found | look(learner, steps[0])
