"""A rule is declared once: its sentence in Python is the one that it prints for the API server."""

import pytest

from rljob_api.errors import ABSENT, Problem
from rljob_api.reading.manifest import load
from rljob_api.rules.cel import Cel
from rljob_api.rules.claims import Search, Text, elsewhere, needs, requires, unused
from rljob_api.rules.terms import SPEC, as_term, has, when
from support.api.bad_manifests import table

GOOD = load(table()["good"]).spec
seed, name, tools = SPEC.seed, SPEC.algorithm.name, SPEC.rollout.tools
never = as_term(1) == 2


def test_a_rule_that_holds_has_no_problem():
    assert list(requires(seed, seed == 0, "is not 0")(GOOD)) == []


def test_a_sentence_shows_the_value_other_values_and_the_nearest():
    rule = requires(seed, seed > 3, f"is not above {as_term(3)} of {name}; nearest valid: {seed + 4}")

    assert list(rule(GOOD)) == [Problem("spec.seed", 0, "is not above 3 of grpo", "4")]
    assert rule.cel == (
        Cel(
            "spec.seed",
            "self.seed > 3",
            "{self.seed} is not above 3 of {self.algorithm.name}; nearest valid: {self.seed + 4}",
        ),
    )


@pytest.mark.parametrize(
    ("field", "shows", "value", "begins"),
    [
        (seed, True, 0, "{self.seed} is"),
        (name, True, "grpo", '"{self.algorithm.name}" is'),
        (name, as_term("x"), "x", '"x" is'),
        (SPEC.data.shuffle, as_term(True), True, "true is"),
        (SPEC.algorithm.clip_low, True, 0.2, "{self.algorithm.clipLow} is"),
        (seed, False, ABSENT, "is"),
        (tools, True, ABSENT, "is"),
        (SPEC.rollout.sampling.stop, True, ABSENT, "is"),
    ],
)
def test_a_problem_shows_the_value_of_a_field_that_is_not_a_section(field, shows, value, begins):
    rule = requires(field, never, "is wrong", shows=shows)

    assert [problem.value for problem in rule(GOOD)] == [value]
    assert rule.cel[0].says == f"{begins} wrong"


@pytest.mark.parametrize(
    ("value", "text"), [(SPEC.data.shuffle, "true"), (SPEC.algorithm.clip_low, "0.2"), (seed, "0")]
)
def test_a_value_in_a_sentence_is_written_as_in_a_manifest(value, text):
    assert Text(f"as {value}").of(GOOD) == f"as {text}"


def test_a_value_in_quotes_keeps_them():
    assert Text(f'by "{name}" alone').of(GOOD) == 'by "grpo" alone'


def test_a_constant_with_braces_stays_itself():
    said = Text(f"has no {as_term('{question}')}")

    assert (said.of(GOOD), said.says) == ("has no {question}", "has no {'{question}'}")


def test_a_sentence_without_its_f_is_refused_when_it_is_declared():
    with pytest.raises(ValueError, match="is an f missing"):
        requires(seed, never, "is more than {seed}")


def test_a_search_says_what_python_finds_and_keeps_its_own_cel():
    rule = requires(seed, never, "is wrong", Search(lambda spec: f"{spec.seed + 2}", says="any", cel=("'seed 2'",)))

    assert [problem.nearest for problem in rule(GOOD)] == ["2"]
    assert (rule.cel[0].says, rule.cel[0].nearest) == ("{self.seed} is wrong; nearest valid: any", ("'seed 2'",))


def test_a_search_may_find_nothing():
    assert [problem.nearest for problem in requires(seed, never, "is wrong", Search(lambda _: None))(GOOD)] == [None]


def test_a_field_is_needed_unless_a_claim_holds():
    assert [problem.value for problem in needs(tools, never, "is missing")(GOOD)] == [ABSENT]
    assert list(needs(tools, seed == 0, "is missing")(GOOD)) == []
    assert list(needs(SPEC.data.held_out, never, "is missing")(GOOD)) == []


def test_a_field_is_unused_unless_it_has_its_default_or_a_claim_holds():
    engines = SPEC.rollout.engines

    assert [problem.value for problem in unused(engines, never, "would not be used")(GOOD)] == [8]
    assert list(unused(engines, seed == 0, "would not be used")(GOOD)) == []
    assert list(unused(SPEC.rollout.gpus_per_engine, never, "would not be used")(GOOD)) == []


def test_a_problem_of_one_place_is_reported_at_another():
    rule = requires(
        SPEC.reward.kind, never, f"of spec.reward.kind {when(has(tools), 'a', 'b')}; nearest valid: spec.reward"
    )

    assert list(elsewhere([rule], GOOD, "spec.reward", "spec.reward.parts[1]")) == [
        Problem("spec.reward.parts[1].kind", GOOD.reward.kind, "of spec.reward.parts[1].kind b", "spec.reward.parts[1]")
    ]
