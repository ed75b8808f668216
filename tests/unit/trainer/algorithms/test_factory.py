"""A name becomes an algorithm: one of ours, or one that a user brings without a fork."""

import ast
import dataclasses
import math
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_api.algorithms import KNOWN
from rljob_api.reading.manifest import load, problems
from rljob_api.sections import Algorithm as Settings
from rljob_api.sections import ImportanceBound, ImportanceLevel, ImportanceSampling, Kl, NormalizeBy
from rljob_trainer.algorithms import factory
from rljob_trainer.algorithms.algorithm import CISPO, CLIP, GSPO, LIKELIHOOD, Algorithm, GroupOutcome, PerGroup
from rljob_trainer.algorithms.errors import AlgorithmError
from rljob_trainer.algorithms.factory import Checked, algorithm, smallest_group
from rljob_trainer.assembly.settings import chosen_algorithm, loss_settings
from rljob_trainer.batches.loss_weights import by_token
from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives import objective
from rljob_trainer.learners.rank.loss.loss import policy_loss
from support.api.bad_manifests import table
from support.trainer.algorithm_batches import batch

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples" / "algorithms"
PAGE = EXAMPLES.parents[1] / "algorithms.md"
ROW = re.compile(r"^\| \[(.*?)\]\S+ \| (`.*) \|$", re.MULTILINE)
RECIPES = [
    (name, re.findall(r"`([^`]+: [^`]+)`", settings))
    for name, settings in ROW.findall(PAGE.read_text().partition("## Formulas")[0])
]
"""rows of the page's table: name, settings"""
SHARED = {"__init__", "algorithm", "baseline", "errors", "factory"}
"""files of the room that are no algorithm"""
OBJECTIVES = {"clip": CLIP, "gspo": GSPO, "cispo": CISPO, "likelihood": LIKELIHOOD}


@pytest.fixture
def bring(monkeypatch):
    """Make a module called `mine` with these names in it."""

    def module(**names):
        made = types.ModuleType("mine")
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, "mine", made)

    return module


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)


def spec_with(**algorithm):
    return load(table()["good"].replace("  reward:\n", f"  algorithm: {algorithm}\n  reward:\n")).spec


def settings_of(name, **more):
    critic = {"learning_rate": 1e-5} if KNOWN[name].critic else None
    return Settings(name=name, critic=critic, **more)


def outcome(*rewards):
    nothing = (np.zeros(1),) * len(rewards)
    return GroupOutcome(rewards, (1,) * len(rewards), penalties_G=nothing, values_G=nothing)


def test_every_algorithm_of_the_table_has_a_file_and_every_file_a_line_of_the_table():
    files = {path.stem for path in Path(factory.__file__).parent.glob("*.py")} - SHARED
    assert files == {factory.path_of(name).rpartition(":")[2] for name in KNOWN}


@pytest.mark.parametrize("name", KNOWN)
def test_a_registered_algorithm_has_the_objective_that_the_rules_know(name):
    assert algorithm(settings_of(name)).objective == OBJECTIVES[KNOWN[name].objective]


@pytest.mark.parametrize("name", KNOWN)
def test_a_standard_deviation_can_be_chosen_where_the_rules_say_so(name):
    outcomes = [outcome(0.0, 1.0), outcome(0.0, 0.25)]
    chosen = {
        by: algorithm(settings_of(name, normalize_by=by)).advantage(outcomes)
        for by in (NormalizeBy.GROUP, NormalizeBy.NONE)
    }
    assert (chosen[NormalizeBy.GROUP] != chosen[NormalizeBy.NONE]) == KNOWN[name].normalizes


@pytest.mark.parametrize(
    ("name", "expected"), [("ranks:ranks", (-1 / 3, 2 / 3, -1 / 3)), ("unclipped:unclipped", (-1, 2, -1))]
)
def test_an_algorithm_of_the_examples_is_used_as_the_manifest_names_it(examples, name, expected):
    chosen = chosen_algorithm(spec_with(name=name))
    assert chosen.advantage([GroupOutcome((0.0, 2.0, 0.0), (1, 1, 1))]) == [tuple(expected)]


@pytest.mark.parametrize("name", KNOWN)
def test_an_algorithm_has_returns_where_the_rules_want_a_critic(name):
    assert (algorithm(settings_of(name)).returns is not None) == KNOWN[name].critic


def test_an_objective_of_the_examples_trains(examples):
    b = batch(0)
    mask = b.mask_D_T.bool()
    chosen = objective.load(algorithm(Settings(name="unclipped:unclipped")).objective)
    new = b.new_D_T[mask].requires_grad_()
    targets = b.targets(by_token(b.lengths_D))
    loss, sums = policy_loss(new, b.entropy_D_T[mask], targets, LossSettings(), chosen)
    wide = policy_loss(
        new, b.entropy_D_T[mask], targets, LossSettings(clip_low=0.99, clip_high=99), objective.load(CLIP)
    )
    assert sums["clip_fraction"].item() == 0.0
    torch.testing.assert_close(loss, wide[0])


@pytest.mark.parametrize(("name", "settings"), RECIPES, ids=[name for name, _ in RECIPES])
def test_a_recipe_of_the_page_is_valid_and_has_an_algorithm(name, settings):
    text = table()["good"].replace("steps: 200", "steps: 200\n    stepsPerRollout: 2")
    lines = "".join(f"    {setting}\n" for setting in settings)
    spec = load(text.replace("  reward:\n", f"  algorithm:\n{lines}  reward:\n")).spec
    assert spec.algorithm != Settings()
    assert chosen_algorithm(spec).advantage([outcome(0.0, 1.0)])


def test_the_page_has_a_recipe_for_every_algorithm_of_rewards():
    named = re.findall(r"name: (\w+)", repr(RECIPES))
    assert set(named) == KNOWN.keys() - {"grpo", "sft"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_stands_on_the_page(path):
    code = path.read_text()
    (docstring,) = [node for node in ast.parse(code).body if isinstance(node, ast.Expr)]
    lines = [line for line in code.splitlines()[docstring.end_lineno :] if line]
    assert len(lines) <= 15
    assert "\n".join(code.splitlines()[docstring.end_lineno + 1 :]) in PAGE.read_text()


@pytest.mark.parametrize(
    ("names", "wanted", "said"),
    [
        ({}, "absent_module:x", r"absent_module:x: cannot import absent_module: ModuleNotFoundError"),
        ({"mine_too": 1}, "mine:x", r"mine:x: mine has no x; it has mine_too"),
        ({"x": 7}, "mine:x", r"algorithm.name mine:x is 7; a function of the settings is wanted"),
        ({"x": lambda: 7}, "mine:x", r"algorithm.name mine:x failed: TypeError: "),
        ({"x": lambda settings: 7}, "mine:x", r"algorithm.name mine:x returned 7; an Algorithm is wanted"),
    ],
)
def test_what_is_no_algorithm_is_reported(bring, names, wanted, said):
    bring(**names)
    with pytest.raises(AlgorithmError, match=said):
        algorithm(Settings(name=wanted))


@pytest.mark.parametrize(
    ("advantages", "said"),
    [
        (lambda outcomes: [(0.5,)], r"advantages \(0.5,\) for rewards \(0.0, 1.0\); one finite number for each sample"),
        (lambda outcomes: [(0.5, math.nan)], r"advantages \(0.5, nan\) for rewards"),
        (lambda outcomes: [(0.5, 1e39)], r"advantages \(0.5, 1e\+39\) for rewards"),
        (lambda outcomes: [(0.5, np.array([1.0, 2.0]))], r"advantages \(0.5, array\(\[1., 2.\]\)\) for rewards"),
        (lambda outcomes: [], r"0 groups of advantages for 1"),
        (lambda outcomes: 1 / 0, r"failed: ZeroDivisionError: division by zero"),
    ],
)
def test_advantages_that_nobody_should_train_on_are_reported(bring, advantages, said):
    bring(x=lambda settings: Algorithm(advantages))
    with pytest.raises(AlgorithmError, match=f"algorithm.name mine:x.* ?{said}"):
        algorithm(Settings(name="mine:x")).advantage([GroupOutcome((0.0, 1.0), (2, 3))])


def test_an_advantage_may_be_one_for_each_token(bring):
    bring(x=lambda settings: Algorithm(lambda outcomes: [(0.5, np.array([1.0, 2.0, 3.0]))]))
    assert algorithm(Settings(name="mine:x")).advantage([GroupOutcome((0.0, 1.0), (2, 3))])


def test_an_objective_that_returns_one_number_for_all_tokens_is_reported():
    b = batch(0)
    mask = b.mask_D_T.bool()

    def mean(responses, settings):
        clipped = objective.load(CLIP)(responses, settings)
        return dataclasses.replace(clipped, loss_R=clipped.loss_R.mean())

    with pytest.raises(ValueError, match=r"returned losses \(\), one a token is wanted"):
        policy_loss(b.new_D_T[mask], b.entropy_D_T[mask], b.targets(by_token(b.lengths_D)), LossSettings(), mean)


def test_an_objective_that_is_not_there_is_reported_before_anything_starts(bring):
    bring(x=lambda settings: Algorithm(lambda outcomes: [], "mine:loss"))
    with pytest.raises(AlgorithmError, match=r"algorithm.name mine:x: objective mine:loss: .* mine has no loss"):
        chosen_algorithm(spec_with(name="mine:x"))


def test_every_setting_of_the_manifest_reaches_the_loss():
    text = table()["good"].replace("steps: 200", "steps: 200\n    stepsPerRollout: 2")
    settings = (
        "{name: gspo, clipLow: 0.1, clipHigh: 0.3, entropyCoefficient: 0.01, kl: {coefficient: 0.5, estimator: k2},"
        " importanceSampling: {kind: Mask, level: Sequence, low: 0.5, high: 5}}"
    )
    spec = load(text.replace("  reward:\n", f"  algorithm: {settings}\n  reward:\n")).spec
    assert loss_settings(spec, chosen_algorithm(spec)) == LossSettings(
        objective=GSPO,
        clip_low=0.1,
        clip_high=0.3,
        importance=ImportanceSampling(kind=ImportanceBound.MASK, level=ImportanceLevel.SEQUENCE, low=0.5, high=5.0),
        entropy_coefficient=0.01,
        kl=Kl(coefficient=0.5, estimator="k2"),
    )
    assert problems(text) == ()


@pytest.mark.parametrize(("added_to", "in_the_loss"), [("Loss", True), ("Reward", False)])
def test_a_penalty_is_in_the_loss_or_in_the_reward(added_to, in_the_loss):
    spec = spec_with(kl={"coefficient": 0.1, "addedTo": added_to})
    assert (loss_settings(spec, chosen_algorithm(spec)).kl is not None) == in_the_loss


@pytest.mark.parametrize("clamp", [True, False])
def test_the_loss_clamps_the_penalty_as_the_manifest_says(clamp):
    spec = spec_with(kl={"coefficient": 0.1, "clamp": clamp})
    assert loss_settings(spec, chosen_algorithm(spec)).kl == Kl(coefficient=0.1, estimator="k3", clamp=clamp)


def test_an_algorithm_of_a_user_is_tried_before_anything_starts(bring):
    def wrong(scores):
        return scores[:-1]

    def failing(responses, settings):
        return responses.logprobs_R * settings.clipLow

    bring(
        wrong=lambda settings: Algorithm(PerGroup(wrong)),
        failing=lambda settings: Algorithm(PerGroup(tuple), objective="mine:objective"),
        objective=failing,
    )
    with pytest.raises(AlgorithmError, match=r"mine:wrong: advantages .* one finite number for each sample is wanted"):
        chosen_algorithm(spec_with(name="mine:wrong"))
    message = r"mine:failing: objective mine:objective: failed on a trial: AttributeError.*nearest: clip_low"
    with pytest.raises(AlgorithmError, match=message):
        chosen_algorithm(spec_with(name="mine:failing"))


def test_our_algorithms_need_two_samples_of_a_group():
    assert smallest_group(algorithm(Settings(name="grpo")), 8) == 2


@pytest.mark.parametrize(
    ("advantage", "smallest"),
    [
        (lambda outcomes: [[0.0] * len(outcome.rewards_G) for outcome in outcomes], 2),
        (lambda outcomes: np.asarray([outcome.rewards_G for outcome in outcomes]), 8),
        (lambda outcomes: [[0.0] * 8 for _ in outcomes], 8),
    ],
)
def test_an_algorithm_of_a_user_s_that_takes_groups_of_one_size_gets_whole_groups(advantage, smallest):
    assert smallest_group(Algorithm(Checked("own:own", advantage)), 8) == smallest
