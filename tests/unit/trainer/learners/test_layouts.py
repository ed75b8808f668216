"""How ranks are shared out between tensor, pipeline and data parallelism."""

from pathlib import Path

import pytest

from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.learners.config import layout
from rljob_trainer.learners.rank.attention.layout import share_length
from support.trainer.learner_data import changed, learner_config


def test_ranks_that_are_left_over_from_the_model_share_the_data() -> None:
    config = learner_config(Path("model"), tensor=2, pipeline=2)
    assert layout(config, 8) == ParallelLayout(tensor=2, pipeline=2, data=2)


def test_ranks_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(ValueError, match="use a multiple of 2"):
        layout(learner_config(Path("model"), tensor=2), 3)


def test_tensor_is_fastest_then_data_then_pipeline() -> None:
    sizes = ParallelLayout(tensor=2, pipeline=2, data=2)
    assert [sizes.data_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [sizes.output_rank(share) for share in range(2)] == [4, 6]


def test_context_comes_between_tensor_and_data() -> None:
    found = layout(learner_config(Path("model"), tensor=2, context=2), 8)
    assert found == ParallelLayout(tensor=2, pipeline=1, data=2, context=2)
    assert [found.data_rank(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [found.output_rank(share) for share in range(2)] == [0, 4]
    assert str(found) == "tensor 2 x pipeline 1 x data 2, context over 2"
    with pytest.raises(ValueError, match=r"context parallel 2: use a multiple of 4"):
        layout(learner_config(Path("model"), tensor=2, context=2), 6)


def test_context_parallel_ranks_may_share_out_experts_in_a_micro_batch_of_their_own() -> None:
    config = learner_config(Path("model"), context=2, expert=2)
    assert not layout(config, 4).data_ranks_meet
    assert layout(changed(config, expert=4), 4).data_ranks_meet


@pytest.mark.parametrize(
    ("tensor", "expert", "expert_tensor", "meet"),
    [(1, 1, 1, False), (2, 2, 1, False), (4, 2, 2, False), (1, 2, 1, True), (2, 4, 1, True), (2, 2, 2, True)],
)
def test_data_parallel_ranks_meet_where_experts_are_spread_wider_than_matrices(
    tensor: int, expert: int, expert_tensor: int, meet: bool
) -> None:
    config = learner_config(Path("model"), tensor=tensor, expert=expert, expert_tensor=expert_tensor)
    assert layout(config, 8).data_ranks_meet is meet


def test_experts_are_spread_over_the_ranks_of_a_stage() -> None:
    config = learner_config(Path("model"), pipeline=2, expert=4)
    found = layout(config, 8)
    assert (found.expert, found.data, str(found)) == (4, 4, "tensor 1 x pipeline 2 x data 4, experts over 4")
    with pytest.raises(ValueError, match=r"2 learner ranks of a pipeline stage .* use a multiple of 4"):
        layout(config, 4)


def test_tokens_are_shared_out_by_tensor_ranks_if_the_configuration_says_so() -> None:
    config = learner_config(Path("model"), tensor=4)
    assert (config.layout.token_shares, changed(config, sequence=True).layout.token_shares) == (1, 4)


@pytest.mark.parametrize(("length", "ranks", "share"), [(8, 4, 2), (9, 4, 3), (1, 4, 1), (7, 1, 7)])
def test_tensor_ranks_share_out_the_tokens_that_experts_compute(length: int, ranks: int, share: int) -> None:
    assert share_length(length, ranks) == share
