"""The words that an expression needs are a quick test: a line without them cannot match."""

import re

import pytest

from rljob_doctor.catalogue import catalogue
from rljob_doctor.required_words import Group, exceptions, required_words
from rljob_doctor.scan import signatures
from support.tables import each_of


@each_of(
    [
        ("(?:AssertionError|ValueError).*batch_size", [Group((b"AssertionError", b"ValueError"), ())]),
        ("failed (?:to load|because) of", [Group((b"failed",), ()), Group((b"because", b"load"), ())]),
        ("(?i)Refused", [Group((), (b"refused",))]),
        ("(?:Error|(?i:Failed))", [Group((b"Error",), (b"failed",))]),
        (r"loss|\d+", []),
        ("(?:failed)?", []),
        ("(?:failed){2}", [Group((b"failed",), ())]),
        (r'the "word" of', [Group((b"the",), ()), Group((b"word",), ())]),
        ("a to b", []),
    ]
)
def test_words_that_a_line_needs(expression: str, words: list[Group]):
    assert list(required_words(expression, "batch_size")) == words


def test_a_word_of_the_text_needs_no_search():
    assert required_words("CUDA error: bad", "CUDA error") == (Group((b"bad",), ()),)
    assert required_words("(?i:cuda) bad", "CUDA") == (Group((b"bad",), ()),)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("(?:AssertionError|ValueError).*batch_size", ("AssertionError", "ValueError")),
        ("(?i)(?:AssertionError|ValueError)", ()),
        ("(?:ValueError|error:).*x", ()),
        ("no class", ()),
    ],
)
def test_exceptions_that_a_line_needs(expression: str, names: tuple[str, ...]):
    assert exceptions(expression) == names


def has_one(line: bytes, group: Group) -> bool:
    return any(word in line for word in group.as_written) or any(word in line.lower() for word in group.in_any_case)


EXAMPLES = [
    (signature.match, signature.text, line)
    for failure in catalogue().values()
    for signature in signatures(failure)
    if signature.match
    for line in (failure.example or "").splitlines()
    if signature.text in line
]


def test_an_example_that_matches_has_the_words():
    wrong = [
        (match, line)
        for match, text, line in EXAMPLES
        if re.search(match, line) and not all(has_one(line.encode(), group) for group in required_words(match, text))
    ]
    assert wrong == []
