"""Functions of a user's are found, or missed, without running any."""

from collections.abc import Callable
from typing import Any

import pytest

from rljob_doctor.diagnosis import diagnose
from rljob_doctor.scan import scan
from rljob_trainer.preflight import Findings
from support.trainer.preflight_place import Place, set_spec
from support.trainer.whole_run import REWARD


def part(path: str) -> dict[str, str]:
    return {"name": path.partition(":")[2], "kind": "Python", "function": path}


def reward(path: str, **sections: Any) -> Callable[[Place], object]:
    return set_spec(reward={"kind": "Python", "function": path}, **sections)


def reward_file(text: str) -> Callable[[Place], object]:
    return lambda place: (place.root / "tiny_reward.py").write_text(text)


@pytest.mark.parametrize(
    ("sabotage", "said"),
    [
        (
            reward("tiny_rewards:digits"),
            'spec.reward.function: "tiny_rewards:digits" is not there: no module tiny_rewards in ',
        ),
        (reward("tiny_rewards:digits"), ", on PYTHONPATH, or installed; nearest valid: tiny_reward:digits"),
        (reward("tiny_reward:digit"), "/tiny_reward.py has no digit; nearest valid: tiny_reward:digits"),
        (reward("tiny_reward.sub:digits"), "no module tiny_reward.sub in "),
        (reward_file("def digits(:\n    pass\n"), "/tiny_reward.py, line 1: invalid syntax"),
        (reward_file("def other():\n    digits = 1\n"), "/tiny_reward.py has no digits"),
        (
            set_spec(reward={"kind": None, "function": None, "parts": [part("tiny_reward:digits"), part("x.y:z")]}),
            'spec.reward.parts[1].function: "x.y:z" is not there: no module x.y in ',
        ),
        (set_spec(rollout={"generate": "tiny_reward:make"}), 'spec.rollout.generate: "tiny_reward:make" is not there'),
        (
            set_spec(rollout={"tools": {"functions": ["calculator", "handbook:search"]}}, data={"systemPrompt": "x"}),
            'spec.rollout.tools.functions[1]: "handbook:search" is not there',
        ),
        (set_spec(algorithm={"name": "own:rule"}), 'spec.algorithm.name: "own:rule" is not there'),
    ],
)
def test_a_function_that_is_not_there_is_named_without_running_any(
    place: Place, sabotage: Callable[[Place], object], said: str
):
    sabotage(place)
    refused = "\n".join(map(str, place.look().problems))
    assert said in refused
    assert diagnose([scan("output", refused.encode())]).findings[0].failure.code == "UserFunctionMissing"


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit('this must not be run')\n\ndef digits(): ...\n",
        "if True:\n    from operator import eq as digits\n",
        "from operator import *\n",
        "globals()['digits'] = len\n",
        "def __getattr__(name): ...\n",
        "class digits: ...\n",
    ],
)
def test_a_function_that_may_be_there_is_no_finding(place: Place, text: str):
    reward_file(text)(place)
    assert place.look() == Findings()


@pytest.mark.parametrize(
    "path", ["math:gcd", "os.path:basename", "json.decoder:JSONDecoder", "xml.sax.handler:feature_validation"]
)
def test_functions_of_installed_packages_are_found(place: Place, path: str):
    reward(path)(place)
    assert place.look() == Findings()


def test_functions_are_found_where_the_manifest_s_own_python_path_leads(place: Place):
    (place.root / "elsewhere").mkdir()
    (place.root / "elsewhere" / "judge.py").write_text(REWARD)
    reward("judge:digits")(place)
    assert place.look().problems
    set_spec(runtime={"env": {"PYTHONPATH": str(place.root / "elsewhere")}})(place)
    assert place.look() == Findings()


def test_a_module_that_is_not_here_is_no_mistake_of_a_manifest_that_is_meant_for_another_machine(place: Place):
    reward("own.judges:digits")(place)
    found = place.look(here=False)
    assert (found.problems, found.elsewhere) == ((), ("module own.judges",))
