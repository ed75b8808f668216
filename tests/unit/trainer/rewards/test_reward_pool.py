"""A function in several processes: what one call does costs its own process, and results do not depend on how many."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import pytest

from rljob_api.sections import Judges, Judging, RewardKind
from rljob_trainer.processes.function_pool import FunctionPool, is_worth_it
from rljob_trainer.reporting.losses import AwayError
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Failure, Score
from rljob_trainer.rewards.python import Machine, PythonReward, python_reward
from support.trainer.judging import prompt, responses, write_module
from support.waiting import until

JUDGES = """
    import os, time
    from pathlib import Path

    HERE = Path(__file__).parent
    if (HERE / "broken").exists():
        raise RuntimeError("it was broken meanwhile")

    def judge(question, response, label, metadata):
        return eval(response)

    def wait_for(name, worth=1.0):
        while not (HERE / name).exists():
            time.sleep(0.01)
        return worth

    def meet(mine, other):
        \"\"\"Return when two calls are under way at once.\"\"\"
        (HERE / mine).touch()
        return wait_for(other)

    async def later(question, response, label, metadata):
        return float(os.getpid())

    def together(question, responses, label, metadata):
        return [float(len(each)) for each in responses]
"""
MEMORY = 2**40
Make = Callable[..., PythonReward]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of an importable module called `pooled`."""
    write_module(tmp_path, JUDGES, "pooled")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def make(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make rewards that start a process for each call that waits."""
    monkeypatch.setattr("rljob_trainer.processes.function_pool.is_worth_it", lambda waiting, *_: waiting > 0)
    made: list[PythonReward] = []

    def one(cores: int, name: str = "judge", **fields: object) -> PythonReward:
        spec = Judging(kind=RewardKind.PYTHON, function=f"pooled:{name}", **fields)
        reward = python_reward(spec, here / "reward.log", lambda: None, machine=Machine(cores, MEMORY))
        made.append(reward)
        return reward

    yield one
    for reward in made:
        reward.close()


def pool(reward: PythonReward) -> FunctionPool:
    assert isinstance(reward.worker, FunctionPool)
    return reward.worker


def shown(scores: "list[Score]") -> list[str | float]:
    return [score.reason.partition(";")[0] if isinstance(score, Failure) else score for score in scores]


def test_calls_are_made_at_once_in_several_processes(make: Make):
    assert list(make(2)(responses("meet('a', 'b')", "meet('b', 'a')"))) == [1.0, 1.0]


HOSTILE = ("os._exit(3)", "1 / 0", "bytearray(10 ** 10)", "os.kill(os.getpid(), 9)", "None")


def test_scores_do_not_depend_on_the_number_of_processes(make: Make):
    texts = [str(number / 8) for number in range(60)] + list(HOSTILE)
    Random(0).shuffle(texts)
    alone, several = (shown(list(make(cores, memory_mib=256)(responses(*texts)))) for cores in (1, 3))
    assert alone == several
    assert sum(isinstance(each, float) for each in alone) == 60


def test_a_call_that_ends_its_process_costs_no_other_call(make: Make):
    ended, other = make(2)(responses("meet('a', 'b') and os._exit(3)", "meet('b', 'a')"))
    assert isinstance(ended, Failure)
    assert ended.reason.startswith("the process of pooled:judge ended with code 3 on prompt 0:0; log:")
    assert other == 1.0


def test_each_process_has_a_log_so_that_a_failure_shows_its_own(make: Make, here: Path):
    texts = ("meet('a', 'b') and print('first') or os._exit(3)", "meet('b', 'a') and print('other') or os._exit(4)")
    first, other = (score.reason for score in make(2)(responses(*texts)) if isinstance(score, Failure))
    assert ("first" in first, "other" in first) == (True, False)
    assert ("first" in other, "other" in other) == (False, True)
    assert {file.name for file in here.glob("*.log")} == {"reward.log", "reward-2.log"}


def test_scores_are_asked_for_before_they_are_wanted(make: Make, here: Path):
    scores = make(1).begin(responses("meet('begun', 'go')", of=prompt()))
    assert scores is not None
    until((here / "begun").exists)
    (here / "go").touch()
    assert list(scores) == [1.0]


def test_a_group_that_is_begun_is_judged_as_a_whole(make: Make):
    scores = make(1, "together", judges=Judges.GROUP).begin(responses("a", "bb", of=prompt()))
    assert scores is not None
    assert list(scores) == [1.0, 2.0]


def test_the_bytes_of_responses_that_wait_are_bounded_and_free_when_they_are_judged(make: Make, here: Path):
    reward = make(1)
    reward.room.most = 1000
    waits = [reward.begin(responses("wait_for('go')" + " " * 600, of=prompt())) for _ in range(2)]
    assert waits[0] is not None
    assert waits[1] is None
    (here / "go").touch()
    assert list(waits[0]) == [1.0]
    until(lambda: reward.room.taken == 0)
    assert reward.begin(responses("1" + " " * 5000, of=prompt())) is not None


def test_an_async_function_has_one_process(make: Make):
    reward = make(3, "later")
    assert len(set(reward(responses(*"123456789")))) == 1
    assert len(pool(reward).workers) == 1


def test_concurrency_bounds_the_processes_of_a_plain_function(make: Make):
    reward = make(3, concurrency=1)
    assert len(set(reward(responses(*["os.getpid()"] * 9)))) == 1


@pytest.mark.parametrize(
    ("cores", "memory", "fields", "processes"),
    [
        (8, MEMORY, {}, 8),
        (96, MEMORY, {}, 96),
        (8, MEMORY, {"concurrency": 3}, 3),
        (8, 32 << 30, {}, 4),
        (8, 32 << 30, {"memory_mib": 1024}, 8),
        (8, 1 << 30, {}, 1),
    ],
)
def test_processes_follow_cores_and_memory(cores: int, memory: int, fields: dict[str, int], processes: int):
    spec = Judging(kind=RewardKind.PYTHON, function="pooled:judge", **fields)
    assert Machine(cores, memory).processes(spec) == processes


def test_another_process_is_started_where_calls_would_wait_longer_than_for_its_start():
    assert not is_worth_it(waiting=100, processes=1, call_s=0.001, start_s=1.0)
    assert is_worth_it(waiting=4000, processes=1, call_s=0.009, start_s=1.5)
    assert not is_worth_it(waiting=4000, processes=24, call_s=0.009, start_s=1.5)


def test_a_function_of_which_only_one_process_starts_is_called_in_that_one(make: Make, here: Path, caplog):
    reward = make(2)
    (here / "broken").touch()
    assert list(reward(responses(*["1"] * 8))) == [1.0] * 8
    until(lambda: "action=start_no_more_workers reward=pooled:judge reason=reward.function pooled" in caplog.text)
    assert list(reward(responses(*["2"] * 8))) == [2.0] * 8


def test_a_process_that_does_not_start_again_ends_the_scoring(make: Make, here: Path):
    reward = make(1)
    (here / "broken").touch()
    with pytest.raises(AwayError, match="it was broken meanwhile"):
        list(reward(responses("os._exit(3)", "1", "2")))
    with pytest.raises(AwayError, match="it was broken meanwhile"):
        list(reward(responses("1")))


def test_closing_ends_all_processes_and_what_they_are_doing(make: Make, here: Path):
    reward = make(2)
    names = [f"(HERE / '{name}').touch() or wait_for('never')" for name in "abcd"]
    reward.begin(responses(*names, of=prompt()))
    until(lambda: sum((here / name).exists() for name in "abcd") == 2)
    processes = [psutil.Process(worker.start().process.pid) for worker in pool(reward).workers]
    reward.close()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert alive == []
    with pytest.raises(AwayError, match="have ended"):
        list(reward(responses("1")))


def test_scores_that_nobody_takes_make_room_for_the_next(make: Make, here: Path):
    reward = make(1)
    scores = reward(responses("1", "(HERE / 'begun').touch() or wait_for('never')", "2"))
    assert next(scores) == 1.0
    until((here / "begun").exists)
    scores.close()
    assert list(reward(responses("3"))) == [3.0]


def test_a_function_that_cannot_be_loaded_leaves_no_process(make: Make, here: Path):
    (here / "broken").touch()
    with pytest.raises(RewardError, match="cannot import pooled: RuntimeError: it was broken meanwhile"):
        make(2)
    until(
        lambda: not any(str(here) in " ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))
    )


def test_many_groups_that_are_begun_in_any_order_keep_their_scores(make: Make):
    reward = make(3)
    asked = {number: responses(f"{number}.25", f"{number}.5", of=prompt(uid=f"0:{number}")) for number in range(40)}
    begun = {number: reward.begin(asked[number]) for number in Random(1).sample(range(40), 40)}
    found = list(itertools.chain.from_iterable(begun[number] or () for number in range(40)))
    assert found == [number + part for number in range(40) for part in (0.25, 0.5)]
