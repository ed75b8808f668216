"""The stream of prompts: complete epochs in an order of their own, from any position."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.prompts import PromptStream, order
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.samples import Prompt


def prompts(number: int) -> list[Prompt]:
    return [Prompt(str(row), f"q{row}", f"t{row}", (row,), f"a{row}", {}) for row in range(number)]


def stream(rows: int = 10, seed: int = 0, shuffle: bool = True) -> PromptStream:
    return PromptStream(Held(prompts(rows)), seed=seed, shuffle=shuffle)


def uids(taken) -> list[str]:
    return [prompt.uid for prompt in taken]


def test_an_epoch_issues_every_row_once():
    taken = stream().draw(10)
    assert sorted(uids(taken)) == sorted(f"0:{row}" for row in range(10))


def test_the_uid_names_the_row_that_is_issued():
    assert all(prompt.text == f"t{prompt.uid.split(':')[1]}" for prompt in stream().draw(25))


def test_epochs_have_different_orders():
    issuing = stream()
    first, second = issuing.draw(10), issuing.draw(10)
    assert [prompt.text for prompt in first] != [prompt.text for prompt in second]


def test_seeds_have_different_orders():
    assert uids(stream(seed=0).draw(10)) != uids(stream(seed=1).draw(10))


def test_a_negative_seed_is_a_seed():
    assert uids(stream(seed=-1).draw(10)) != uids(stream(seed=1).draw(10))


def test_without_shuffling_rows_come_as_they_are():
    assert uids(stream(rows=3, shuffle=False).draw(5)) == ["0:0", "0:1", "0:2", "1:0", "1:1"]


@given(rows=st.integers(1, 12), sizes=st.lists(st.integers(0, 30), max_size=6), seed=st.integers(0, 3))
def test_any_partition_into_steps_issues_the_same_prompts(rows, sizes, seed):
    issuing = stream(rows, seed)
    taken = [uid for size in sizes for uid in uids(issuing.draw(size))]
    assert taken == list(islice(stream(rows, seed).uids(), sum(sizes)))
    assert issuing.position == issuing.position_after(sum(sizes))


@given(rows=st.integers(1, 12), before=st.integers(0, 40), after=st.integers(0, 40))
def test_a_stream_that_seeks_goes_on_where_the_other_stopped(rows, before, after):
    issuing, resumed = stream(rows), stream(rows)
    issuing.draw(before)
    resumed.seek(issuing.position)
    assert resumed.draw(after) == issuing.draw(after)


def test_the_rows_of_this_draw_and_then_of_the_next_are_expected():
    class Noted(Held[Prompt]):
        def expect(self, rows):
            expected.append(list(rows))

    expected: list[list[int]] = []
    issuing = PromptStream(Noted(prompts(5)), seed=0, shuffle=True)
    first, second = ([int(prompt.text[1:]) for prompt in issuing.draw(4)] for _ in range(2))
    assert expected[:3] == [first, second, second]


def test_what_comes_next_is_told_without_moving():
    issuing = stream()
    issuing.draw(7)
    told = issuing.upcoming(5)
    assert told == tuple(issuing.row(uid) for uid in uids(issuing.draw(5)))


def test_the_position_after_an_epoch_is_the_start_of_the_next():
    issuing = stream(rows=4)
    issuing.draw(4)
    assert issuing.position == (1, 0)


def test_a_prompt_can_be_issued_again_by_its_uid():
    issuing = stream()
    taken = issuing.draw(13)
    assert tuple(issuing.prompt(prompt.uid) for prompt in taken) == taken


@pytest.mark.parametrize("position", [(0, 10), (-1, 0), (0, -1)])
def test_a_position_outside_of_the_prompts_is_refused(position):
    with pytest.raises(DataError, match=r"not within 10 prompts"):
        stream().seek(position)


def test_no_prompts_are_refused():
    with pytest.raises(DataError, match=r"no prompts to train on"):
        stream(rows=0)


def test_the_fingerprint_is_that_of_the_same_questions_in_the_same_order():
    assert stream().fingerprint == stream().fingerprint


@pytest.mark.parametrize(
    "other",
    [
        stream(rows=11),
        stream(seed=1),
        stream(shuffle=False),
        PromptStream(Held([*prompts(9), Prompt("9", "q9", "t9", (9,), "another label", {})]), seed=0, shuffle=True),
        PromptStream(Held([*prompts(9), Prompt("9", "q9", "t9", (8,), "a9", {})]), seed=0, shuffle=True),
        PromptStream(Held([*prompts(9), Prompt("9", "q9", "t8", (9,), "a9", {})]), seed=0, shuffle=True),
    ],
)
def test_the_fingerprint_differs_for_other_questions_labels_and_orders(other):
    assert stream().fingerprint != other.fingerprint


def test_the_order_of_a_seed_does_not_change_between_releases():
    assert order(10, seed=42, epoch=0).tolist() == [5, 6, 0, 7, 3, 2, 4, 9, 1, 8]
