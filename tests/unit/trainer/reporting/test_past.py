"""The past in constant memory says the same as all steps would."""

from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.reporting.past import METRICS, Mean, Windows, past_of
from rljob_trainer.reporting.records import StepRecord

VALUES = st.lists(st.sampled_from([-1.5, 0.0, 0.25, 1.0, 3.0]), max_size=60)


def means(values: list[float], window: int) -> list[Mean]:
    """Return the means of all full windows, counted back from the newest step, as they were once computed anew."""
    ends = range(len(values) % window + window, len(values) + 1, window)
    return [Mean(end, fmean(values[end - window : end])) for end in ends]


@given(values=VALUES, window=st.integers(1, 7))
def test_windows_are_those_counted_back_from_the_newest_step(values: list[float], window: int) -> None:
    windows = Windows(window)
    for number, value in enumerate(values, 1):
        windows.add(number, value)
        known = means(values[:number], window)
        wanted = None
        if len(known) > 1:
            by_value = [min(known, key=lambda each: each.value), max(known, key=lambda each: each.value)]
            wanted = (known[-1], known[0], *by_value)
        assert windows.past == wanted


def test_the_memory_does_not_grow() -> None:
    past = past_of(
        (StepRecord(time=0.0, step=step, phase_seconds={}, reward_mean=step % 7) for step in range(1, 501)), 10
    )
    assert len(past.recent) == 11
    assert {len(kept) for each in past.windows.values() for kept in (each.first, each.lowest, each.highest)} == {0, 10}
    assert past.windows.keys() == METRICS.keys()
