"""Values of enumerations in another spelling, or under the name that another system has for them."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.reading import field_lookup, field_types
from rljob_api.reading.manifest import choice, problems

OPTIONS = {
    field_lookup.dotted(path): tuple(field_types.kind(entry.field).split(" | "))
    for path, entry in field_lookup.entries().items()
    if " | " in field_types.kind(entry.field)
}
"""every field that takes one of several values, by its path"""
OURS = {
    path: options
    for path, options in OPTIONS.items()
    if path not in ("spec.training.precision", "spec.algorithm.kl.estimator")
}
"""without the values that the field has a spelling of its own for: bf16, k3"""
SEPARATORS = ("", "_", "-", " ", ".")


def nearest(options: tuple[str, ...], value: str) -> str | None:
    return choice("spec.field", value, ", ".join(f"'{option}'" for option in options)).nearest


def spellings(option: str) -> Iterator[str]:
    words = re.findall(r"[A-Z][a-z0-9]*|[a-z0-9]+", option)
    for separator in SEPARATORS:
        text = separator.join(words)
        yield from (text, text.lower(), text.upper(), text[0].lower() + text[1:])


@pytest.mark.parametrize(("path", "options"), OURS.items(), ids=OURS)
def test_values_are_pascal_case(path: str, options: tuple[str, ...]):
    assert all(re.fullmatch(r"([A-Z][a-z0-9]*)+", option) for option in options)


@pytest.mark.parametrize(("path", "options"), OPTIONS.items(), ids=OPTIONS)
def test_every_spelling_of_a_value_leads_to_it(path: str, options: tuple[str, ...]):
    found = {(option, nearest(options, spelling)) for option in options for spelling in spellings(option)}
    assert found == {(option, option) for option in options}


@given(st.sampled_from([(options, option) for options in OPTIONS.values() for option in options]), st.data())
def test_a_value_is_found_in_any_letter_case(known: tuple[tuple[str, ...], str], data: st.DataObject):
    options, option = known
    upper = data.draw(st.lists(st.booleans(), min_size=len(option), max_size=len(option)))
    written = "".join(letter.upper() if high else letter.lower() for letter, high in zip(option, upper, strict=True))
    assert nearest(options, written) == option


@pytest.mark.parametrize(
    ("path", "value", "ours"),
    [
        ("spec.reward.kind", "remote_rm", "Remote"),
        ("spec.reward.kind", "math_verify", "Math"),
        ("spec.algorithm.lossBy", "token-mean", "Token"),
        ("spec.algorithm.lossBy", "seq-mean-token-mean", "Sample"),
        ("spec.algorithm.lossBy", "seq-mean-token-sum-norm", "Constant"),
        ("spec.algorithm.kl.estimator", "low_var_kl", "k3"),
        ("spec.algorithm.importanceSampling.kind", "tis", "Truncate"),
        ("spec.algorithm.importanceSampling.kind", "MIS", "Mask"),
        ("spec.algorithm.importanceSampling.kind", "icepop", "Mask"),
        ("spec.rollout.routerPolicy", "cache_aware", "CacheAware"),
        ("spec.weightSync.transport", "nccl", "Broadcast"),
        ("spec.training.precision", "bfloat16", "bf16"),
        ("spec.training.precision", "float32", "fp32"),
    ],
)
def test_the_value_of_another_system_leads_to_ours(path: str, value: str, ours: str):
    assert nearest(OPTIONS[path], value) == ours


@pytest.mark.parametrize("value", field_lookup.OTHER_VALUES)
def test_every_value_of_another_system_stands_for_one_of_ours(value: str):
    assert any(nearest(options, value) == field_lookup.OTHER_VALUES[value] for options in OPTIONS.values())


def test_what_resembles_no_value_gets_no_suggestion():
    assert nearest(OPTIONS["spec.reward.kind"], "zzz") is None


def test_the_old_spelling_is_answered(good: str):
    (problem,) = problems(good.replace("kind: Math", "kind: exactMatch"))
    assert str(problem) == (
        'spec.reward.kind: "exactMatch" is none of Task, Math, ExactMatch, F1, Python, Remote;'
        " nearest valid: ExactMatch"
    )
