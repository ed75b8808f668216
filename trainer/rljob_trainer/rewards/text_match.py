"""Rewards of a response that is compared with its label as text: exactly, or by F1 of their words as SQuAD counts them.

Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250; the normalisation and the case of empty answers are those of
the official script for version 2.0, https://arxiv.org/abs/1806.03822.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

from rljob_trainer.rewards.function import Response

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(responses: Sequence[Response]) -> list[float]:
    """Return 1.0 or 0.0 for each response: whether it is the label, both trimmed."""
    return [float(response.text.strip() == response.prompt.label.strip()) for response in responses]


def f1(responses: Sequence[Response]) -> list[float]:
    """Return the F1 of each response, 0 to 1."""
    return [token_f1(response.text, response.prompt.label) for response in responses]


def token_f1(answer: str, gold: str) -> float:
    """Return 2PR / (P + R), where P is the share of the answer's words that are in `gold`, and R the reverse.

    A word counts as often as both have it. Where one of them has no words, 1 if the other has none either, else 0.
    """
    answer_words, gold_words = words(answer), words(gold)
    if not answer_words or not gold_words:
        return float(answer_words == gold_words)
    common = sum((Counter(answer_words) & Counter(gold_words)).values())
    return 2 * common / (len(answer_words) + len(gold_words))


def words(text: str) -> list[str]:
    """Return the words in lower case, without ASCII punctuation and English articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()
