"""How ranks are shared out between tensor, pipeline and data parallelism."""

from pathlib import Path

import pytest

from rljob_trainer.learners.config import Layout, layout
from support.trainer.learner_data import learner_config


def test_ranks_that_are_left_over_from_the_model_share_the_data() -> None:
    config = learner_config(Path("model"), tensor_parallel=2, pipeline_parallel=2)
    assert layout(config, 8) == Layout(tensor=2, pipeline=2, data=2)


def test_ranks_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(ValueError, match="use a multiple of 2"):
        layout(learner_config(Path("model"), tensor_parallel=2), 3)


def test_tensor_is_fastest_then_data_then_pipeline() -> None:
    sizes = Layout(tensor=2, pipeline=2, data=2)
    assert [sizes.data_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [sizes.output_rank(share) for share in range(2)] == [4, 6]
