"""The agents of the documentation do what their first lines promise."""

import asyncio
import importlib
from pathlib import Path

import pytest

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
