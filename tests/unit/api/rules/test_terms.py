"""Terms judge in Python as the CEL that they print does, by a reader of CEL that knows nothing of terms."""

import json
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from rljob_api.reading.manifest import load
from rljob_api.rules.names import FUNCTION
from rljob_api.rules.terms import (
    SPEC,
    Field,
    Term,
    as_term,
    before,
    contains,
    default,
    differs,
    exists,
    fields_of,
    has,
    is_default,
    matches,
    named,
    one_of,
    or_else,
    size,
    starts_with,
    when,
)
from rljob_api.sections import Device, Section, Spec
from support.api.bad_manifests import table
from support.api.cel_reader import read
from support.tables import each_of

GOOD = load(table()["good"])
rollout, training, data = SPEC.rollout, SPEC.training, SPEC.data


def spec_with(seed: int = 0, nodes: int = 1, size: int | None = None, shuffle: bool = True) -> Spec:
    content = json.loads(GOOD.spec.model_dump_json(by_alias=True, exclude_none=True))
    content["seed"], content["data"]["shuffle"], content["training"]["nodes"] = seed, shuffle, nodes
    content["training"] |= {} if size is None else {"globalBatchSize": size}
    return Spec.model_validate(content)


def as_manifest(spec: Spec) -> dict[str, object]:
    return {"self": spec.model_dump(mode="json", by_alias=True, exclude_none=True)}


def agree(term: Term, spec: Spec) -> bool:
    """Whether a term's CEL gives what the term gives."""
    python, cel = term.of(spec), read(term.cel)(as_manifest(spec))
    return type(python) is type(cel) and python == cel


numbers = some.sampled_from(
    [SPEC.seed, training.nodes, or_else(training.global_batch_size, 3), as_term(2), as_term(-1)]
)
flags = some.sampled_from([data.shuffle, data.chat_template, has(training.global_batch_size), SPEC.debug.rollout_only])


def larger_numbers(inner: some.SearchStrategy[Term]) -> some.SearchStrategy[Term]:
    makes: list[Callable[[Term, Term], Term]] = [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a // b,
        lambda a, b: a % b,
        lambda a, b: when(a < b, a, b),
        lambda a, b: named(a + b),
    ]
    return some.builds(lambda make, a, b: make(a, b), some.sampled_from(makes), inner, inner)


arithmetic = some.recursive(numbers, larger_numbers, max_leaves=8)
comparisons: list[Callable[[Term, Term], Term]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]
compared = some.builds(lambda make, a, b: make(a, b), some.sampled_from(comparisons), arithmetic, arithmetic)


def larger_claims(inner: some.SearchStrategy[Term]) -> some.SearchStrategy[Term]:
    makes: list[Callable[[Term, Term], Term]] = [
        lambda a, b: a | b,
        lambda a, b: a & b,
        lambda a, b: ~a,
        lambda a, b: a == b,
        lambda a, b: when(a, b, ~b),
    ]
    return some.builds(lambda make, a, b: make(a, b), some.sampled_from(makes), inner, inner)


@given(
    term=some.recursive(flags | compared, larger_claims, max_leaves=12),
    spec=some.builds(
        spec_with,
        seed=some.integers(0, 5),
        nodes=some.integers(1, 4),
        size=some.none() | some.integers(1, 6),
        shuffle=some.booleans(),
    ),
)
def test_what_is_printed_is_what_is_judged(term, spec):
    try:
        judged = term.of(spec)
    except ZeroDivisionError:
        judged = None
    assume(judged is not None)

    assert read(term.cel)(as_manifest(spec)) is judged


@pytest.mark.parametrize(
    ("term", "cel"),
    [
        ((SPEC.seed + 1) * 2, "(self.seed + 1) * 2"),
        (SPEC.seed - (SPEC.seed - 1), "self.seed - (self.seed - 1)"),
        (SPEC.seed * 2 % 3 + 1, "self.seed * 2 % 3 + 1"),
        (
            data.shuffle & (data.chat_template | data.shuffle),
            "self.data.shuffle && (self.data.chatTemplate || self.data.shuffle)",
        ),
        (~(SPEC.seed == 1), "!(self.seed == 1)"),
        (~data.shuffle, "!self.data.shuffle"),
        (when(data.shuffle, 1, 2) + 1, "(self.data.shuffle ? 1 : 2) + 1"),
        (SPEC.algorithm.clip_low <= 1, "self.algorithm.clipLow <= 1.0"),
        (SPEC.watch.staleness < SPEC.seed, "self.watch.staleness < double(self.seed)"),
        (SPEC.seed < SPEC.watch.staleness, "double(self.seed) < self.watch.staleness"),
        (SPEC.runtime.device == Device.CPU, f"self.runtime.device == '{Device.CPU}'"),
        (has(SPEC.reward.function), "has(self.reward.__function__)"),
        (or_else(SPEC.algorithm.critic.warmup_steps, 0), "self.algorithm.?critic.?warmupSteps.orValue(0)"),
        (or_else(training.global_batch_size, 0), "self.training.?globalBatchSize.orValue(0)"),
        (one_of(SPEC.algorithm.name, ["a", "b"]), "self.algorithm.name in ['a', 'b']"),
        (is_default(rollout.tools), "!has(self.rollout.tools)"),
        (is_default(rollout.sampling.stop), "self.rollout.sampling.stop.size() == 0"),
        (is_default(data.shuffle), "self.data.shuffle == true"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_term_prints_itself_as_cel(term, cel):
    assert term.cel == cel


@pytest.mark.parametrize(
    "term",
    [
        contains(data.prompt_template, "{question}"),
        contains(data.prompt_template, "it's"),
        starts_with(SPEC.model.checkpoint, "models/"),
        starts_with(SPEC.model.checkpoint, "odels/"),
        before(SPEC.model.checkpoint, "/"),
        before(SPEC.model.checkpoint, "://"),
        matches(SPEC.algorithm.name, FUNCTION),
        one_of(SPEC.algorithm.name, ["grpo"]),
        size(rollout.sampling.stop),
        is_default(SPEC.algorithm.clip_low),
        exists(data.evaluation_sets, "s", lambda each: has(each.limit)),
        differs(data.train.jsonl, data.held_out.jsonl),
        differs(data.train.parquet, data.held_out.parquet),
        or_else(SPEC.algorithm.critic.warmup_steps, 7),
        or_else(rollout.context_length, 7),
        has(rollout.context_length),
        has(rollout.max_total_tokens),
    ],
    ids=lambda term: term.cel,
)
def test_calls_judge_as_they_print(term):
    assert agree(term, GOOD.spec)


@pytest.mark.parametrize("text", ["a:b", "a.b:c", "a", "a:b:c", "1a:b", "a..b:c", "häuser:maß", "a:b\n", ":", "a_1:_"])
def test_a_pattern_matches_the_same_texts(text):
    spec = GOOD.spec.model_copy(update={"algorithm": GOOD.spec.algorithm.model_copy(update={"name": text})})

    assert agree(matches(SPEC.algorithm.name, FUNCTION), spec)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SPEC.seed | data.shuffle,
        lambda: SPEC.seed < (1 | data.shuffle),
        lambda: SPEC.seed == "1",
        lambda: ~SPEC.seed,
        lambda: when(data.shuffle, 1, "2"),
        lambda: or_else(training.global_batch_size, "0"),
        lambda: data.shuffle and SPEC.seed,
        lambda: 1 < SPEC.seed < 3,
    ],
)
def test_a_claim_of_the_wrong_type_fails_where_it_is_made(make):
    with pytest.raises(TypeError):
        make()


def test_a_field_that_does_not_exist_fails_where_it_is_named():
    with pytest.raises(AttributeError, match=r"self\.rollout has no field prompts"):
        SPEC.rollout.prompts  # noqa: B018


def test_a_section_that_does_not_exist_fails_where_it_is_named():
    with pytest.raises(AttributeError, match=r"^self has no field sampling"):
        SPEC.sampling  # noqa: B018


def test_a_field_of_an_absent_section_is_an_error_as_in_cel():
    with pytest.raises(LookupError, match="warmup_steps"):
        SPEC.algorithm.critic.warmup_steps.of(GOOD.spec)


def test_a_zero_that_is_given_is_not_replaced_by_what_stands_for_an_absent_value():
    judged = GOOD.spec.model_copy(update={"reward": GOOD.spec.reward.model_copy(update={"failure_score": 0.0})})

    assert or_else(SPEC.reward.failure_score, 5.0).of(judged) == 0.0
    assert or_else(SPEC.reward.failure_score, 5.0).of(GOOD.spec) == 5.0


def test_a_field_knows_its_path_its_name_and_its_default():
    assert (rollout.asynchronous.at, rollout.asynchronous.alias) == ("spec.rollout.async", "async")
    assert (default(rollout.samples_per_prompt), default(rollout.tools), default(rollout.sampling.stop)) == (
        8,
        None,
        (),
    )


def sections(field: Field) -> list[Field]:
    """Return a section and all sections in it, those of lists included."""
    return [field, *(found for each in fields_of(field) if each.section for found in sections(each))]


@each_of(sections(SPEC), lambda section: section.cel)
def test_no_field_has_the_name_of_something_that_a_term_has(section):
    assert issubclass(section.section, Section)
    assert [
        name for name in section.section.model_fields if hasattr(Field, name) or name in Field.__annotations__
    ] == []
