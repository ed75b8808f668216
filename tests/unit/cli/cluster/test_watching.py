"""Looking again and again."""

from collections.abc import Callable

import pytest

from rljob_api.exits import Exit
from rljob_cli.cluster.cluster import ClusterError
from rljob_cli.cluster.watching import line, looks
from support.cli.sample_job import job


def answers(*given: str | Exit) -> Callable[[], str]:
    """Return a look that gives these answers; an exit code is raised."""
    left = list(given)

    def look() -> str:
        answer = left.pop(0)
        if isinstance(answer, Exit):
            raise ClusterError("it is away", answer)
        return answer

    return look


def seen(number: int, *given: str | Exit) -> list[tuple[str, str]]:
    found = looks(answers(*given), sleep=lambda seconds: None)
    return [next(found) for _ in range(number)]


def test_a_cluster_that_is_away_is_waited_for_and_the_old_is_shown() -> None:
    assert seen(3, "one", Exit.UNREACHABLE, "two") == [("one", ""), ("one", "it is away"), ("two", "")]


def test_a_job_that_no_operator_has_seen_is_unseen() -> None:
    assert line(job(phase=None)).split("  ")[:2] == ["ml/sums", "Unseen"]


def test_the_first_look_has_to_succeed() -> None:
    with pytest.raises(ClusterError):
        seen(1, Exit.UNREACHABLE)


@pytest.mark.parametrize("code", [Exit.NOT_FOUND, Exit.FORBIDDEN])
def test_what_waiting_does_not_cure_is_raised(code: Exit) -> None:
    with pytest.raises(ClusterError):
        seen(2, "one", code)


def test_a_look_that_takes_long_is_followed_by_a_longer_pause() -> None:
    pauses: list[float] = []
    times = iter([0.0, 0.1, 2.1, 5.1, 20.1, 20.2])
    found = looks(answers("one", "two", "three"), sleep=pauses.append, clock=lambda: next(times))
    assert [next(found)[0] for _ in range(3)] == ["one", "two", "three"]
    assert pauses == [2.0, pytest.approx(15.0)]
