"""Which kind of run a manifest asks for: where samples come from, and what holds the weights."""

from collections.abc import Callable
from dataclasses import dataclass

from rljob_api.sections import Spec
from rljob_trainer.assembly.engine_sampling import engine_source
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.learning import start_checkpoint_weights, start_learner
from rljob_trainer.assembly.material import Prepare
from rljob_trainer.assembly.offline_sampling import recorded_source, response_source
from rljob_trainer.assembly.stages import Learning, Material
from rljob_trainer.engines.placement import Slots


@dataclass(frozen=True, slots=True)
class Mode:
    """What differs from other runs; the stages in `build.py` are the same for all."""

    source: Prepare
    start_learning: Callable[[Foundation, Material, Slots], Learning]


TRAINING = Mode(engine_source, start_learner)
ROLLOUT_ONLY = Mode(engine_source, start_checkpoint_weights)
REPLAY = Mode(recorded_source, start_learner)
SUPERVISED = Mode(response_source, start_learner)


def mode_of(spec: Spec) -> Mode:
    """Return the one mode of a manifest."""
    match spec.is_sft, spec.debug.engines, spec.debug.learner:
        case True, _, _:
            return SUPERVISED
        case _, False, _:
            return REPLAY
        case _, _, False:
            return ROLLOUT_ONLY
        case _:
            return TRAINING
