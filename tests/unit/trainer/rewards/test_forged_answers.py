"""Code in the process of a reward function writes answers of its own into the connection to the driver."""

from collections.abc import Iterator

import pytest

from rljob_api.sections import Judging, RewardKind
from rljob_trainer.rewards.function import Failure, Score
from rljob_trainer.rewards.python import PythonReward, python_reward
from support.trainer.judging import responses, write_module

JUDGES = """
    import json, os

    def write(message):
        ours = [fd for fd in range(3, 99) if os.path.realpath(f'/proc/self/fd/{fd}').count('socket:')]
        os.write(ours[0], len(message).to_bytes(4, "big") + message)

    def own_number():
        import inspect
        return next(each.frame.f_locals["number"] for each in inspect.stack() if each.function == "serve")

    def forge(question, response, label, metadata):
        \"\"\"Answer, before the process does, with what the response says, or return it.\"\"\"
        if response.startswith("early"):
            write(json.dumps({"number": own_number(), "scores": [9.0]}).encode())
            return 0.5
        if not response.startswith("="):
            write(response.encode() * (100_000 if len(response) == 1 else 1))
        return float(response.removeprefix("=")) if response.startswith("=") else 0.0
"""


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonReward]:
    directory = tmp_path_factory.mktemp("forgers")
    write_module(directory, JUDGES, "forgers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        spec = Judging(kind=RewardKind.PYTHON, function="forgers:forge")
        made = python_reward(spec, directory / "reward.log", lambda: None)
        yield made
        made.close()


def reasons(scores: list[Score]) -> list[str | float]:
    return [score.reason if isinstance(score, Failure) else score for score in scores]


FORGED = (
    "[",
    '{"number": {}, "scores": [1.0]}',
    '{"number": 1, "scores": [1.0]}',
    '{"number": "1", "scores": ["x"]}',
    '{"number": "1"}',
    '{"number": "1", "scores": [1.0], "late": true}',
    '{"scores": [1.0]}',
    '{"ready": true, "is_async": false}',
    "null",
    "NaN",
    '{"number": "1", "scores": [1e999]}',
    '{"number": "1", "text": "9"}',
)


@pytest.mark.parametrize("forged", FORGED)
def test_an_answer_that_is_forged_fails_its_own_call_and_no_other(reward: PythonReward, forged: str):
    before, failed, after = reasons(list(reward(responses("=1.5", forged, "=2.5"))))
    assert failed.startswith("the process of forgers:forge gave an answer that was not ours on prompt 0:")
    assert (before, after) == (1.5, 2.5)


def test_what_a_call_leaves_in_the_connection_is_not_the_result_of_the_next(reward: PythonReward):
    assert list(reward(responses("early", "=2.5", "=3.5"))) == [9.0, 2.5, 3.5]
