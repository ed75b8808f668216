"""The agents of the documentation do what their first lines promise."""

import asyncio
import importlib
import sys
from pathlib import Path

import pytest

from rljob_api.sections import Agent
from rljob_trainer.agents.commands import Commands
from rljob_trainer.agents.outcome import Returned
from support.trainer.scripted_model import Says

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples" / "agents"
TASK = {"question": "19 * 21", "label": "399", "metadata": {}}


@pytest.mark.parametrize(
    ("script", "reward", "turns"),
    [
        (["calculate 19 * 21", "399"], 1.0, 2),
        (["calculate 19 * 22", "418"], 0.0, 2),
        (["399"], 1.0, 1),
        (["calculate 1 * 1"] * 3, 0.0, 3),
        (["calculate 19 + 21"], 0.0, 1),
    ],
    ids=["right", "wrong product", "by heart", "for ever", "no product"],
)
def test_the_calculator_answers_products_and_the_last_answer_is_judged(serve, monkeypatch, script, reward, turns):
    monkeypatch.syspath_prepend(EXAMPLES)
    served = serve([Says(each) for each in script])
    agent = importlib.import_module("products").run
    assert asyncio.run(agent(TASK, served.base_url, served.session.key)) == reward
    assert [turn.parent for turn in served.turns] == [None, *range(turns - 1)]


def test_the_same_as_a_program_writes_the_reward(serve, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES), prepend=":")
    served = serve([Says("calculate 19 * 21"), Says("399")])

    async def ran():
        commands = Commands(Agent(command=(sys.executable, "-m", "products_program")), tmp_path / "agents.log")
        return await commands.call((TASK, served.base_url, served.session.key))

    assert asyncio.run(ran()) == Returned(reward=1.0)
    assert [turn.parent for turn in served.turns] == [None, 0]
