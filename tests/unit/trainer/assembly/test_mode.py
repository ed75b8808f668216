"""Which kind of run a manifest asks for."""

import pytest

from rljob_api.reading.manifest import parse
from rljob_trainer.assembly.mode import REPLAY, ROLLOUT_ONLY, SUPERVISED, TRAINING, mode_of
from support.trainer.whole_run import manifest


@pytest.mark.parametrize(
    ("debug", "mode"),
    [
        ({}, TRAINING),
        ({"dumpRollouts": True}, TRAINING),
        ({"rolloutOnly": True}, ROLLOUT_ONLY),
        ({"replay": "runs/first/rollouts"}, REPLAY),
    ],
)
def test_a_debug_field_leaves_out_engines_or_learner(debug, mode, tmp_path):
    assert mode_of(parse(manifest(tmp_path, tmp_path, debug=debug)).spec) is mode


def test_sft_reads_responses_where_others_sample(tmp_path):
    spec = parse(manifest(tmp_path, tmp_path)).spec
    sft = spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update={"name": "sft"})})
    assert mode_of(sft) is SUPERVISED


def test_rollouts_alone_differ_from_training_by_what_holds_the_weights_and_nothing_else():
    assert ROLLOUT_ONLY.source is TRAINING.source
    assert ROLLOUT_ONLY.start_learning is not TRAINING.start_learning
    assert REPLAY.start_learning is SUPERVISED.start_learning is TRAINING.start_learning
