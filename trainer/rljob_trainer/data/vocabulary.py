"""Whether two models mean the same tokens by the same numbers. Pure."""

from collections.abc import Mapping

Vocabulary = Mapping[str, int]
"""the texts of tokens -> their ids"""


def difference(student: Vocabulary, teacher: Vocabulary) -> str | None:
    """Return how the teacher's tokens differ from the student's, in words; None: they do not."""
    names = {token: text for text, token in teacher.items()}
    wrong = sorted((token, text) for text, token in student.items() if names.get(token) != text)
    if wrong:
        token, text = wrong[0]
        other = repr(names[token]) if token in names else "none"
        return f"{len(wrong)} of {len(student)} tokens differ, first {token}: {text!r} of the student, {other} here"
    if more := len(teacher) - len(student):
        return f"it has {more} tokens that the student's has not"
    return None
