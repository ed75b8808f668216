"""What is decided when a run is put together."""

import pytest

from rljob_trainer.build import longest_prompt


@pytest.mark.parametrize(
    ("context", "cache", "new", "longest"),
    [(64, 8192, 5, 57), (64, 8192, 1, 57), (4096, 8192, 2048, 2046), (40960, 8192, 100, 8090), (512, None, 8, 502)],
)
def test_a_prompt_leaves_room_for_its_response_and_for_what_the_engine_keeps(context, cache, new, longest):
    assert longest_prompt(context, cache, new) == longest
