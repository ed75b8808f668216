"""The words that an expression needs are a quick test: a line without them cannot match."""

import re

import pytest

from rljob_api.failures.catalogue import catalogue
from rljob_api.failures.required_words import exceptions, required_words
from rljob_api.failures.scan import signatures


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("(?:AssertionError|ValueError).*batch_size", ((b"AssertionError", b"ValueError"),)),
        ("failed (?:to load|because) of", ((b"failed",), (b"because", b"load"))),
        ("(?i)refused", ((b"REFUSED", b"Refused", b"refused"),)),
        ("(?i:ImportError)", ((b"IMPORTERROR", b"ImportError", b"Importerror", b"importerror"),)),
        (r"loss|\d+", ()),
        ("(?:failed)?", ()),
        ("(?:failed){2}", ((b"failed",),)),
        (r'the "word" of', ((b"the",), (b"word",))),
        ("a to b", ()),
    ],
)
def test_words_that_a_line_needs(expression: str, words: tuple[tuple[bytes, ...], ...]):
    assert required_words(expression, "batch_size") == words


def test_a_word_of_the_text_needs_no_search():
    assert required_words("CUDA error: bad", "CUDA error") == ((b"bad",),)


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
        if re.search(match, line)
        and not all(any(word.decode() in line for word in group) for group in required_words(match, text))
    ]
    assert wrong == []
