"""Rules between fields: what must hold, and the problem where it does not. Each is declared once, as terms.

What terms cannot say is a Python function, and says why the API server does not judge it: loops over lists, free
mappings, the arguments of installed packages. A nearest valid value that has to be searched for is a `Search`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from rljob_api.errors import ABSENT, Problem
from rljob_api.rules.cel import PART, Cel, plain
from rljob_api.rules.terms import PRINTED, Field, Term, has, in_words, is_default
from rljob_api.sections import Spec

Judge = Callable[[Spec], Iterator[Problem]]
FREE_MAPPING = "the API server does not see into free mappings"
"""why most rules are only in Python"""
SHOWN = ("bool", "int", "double", "string")
"""types of fields whose values a problem shows"""


@dataclass(frozen=True, slots=True)
class Rule:
    """What can be wrong between the fields of a spec."""

    name: str
    judge: Judge
    cel: tuple[Cel, ...] = ()
    """what the API server judges; empty: only Python can"""
    only_python: str = ""
    """why"""

    def __call__(self, spec: Spec) -> Iterator[Problem]:
        return self.judge(spec)


@dataclass(frozen=True, slots=True)
class Text:
    """A text with values: `Text(f"is more than clipHigh {SPEC.algorithm.clip_high}")`."""

    says: str
    """as `Cel.says` has it: each value is CEL in braces, which a term in an f-string prints"""

    def __post_init__(self) -> None:
        strange = [found[0] for found in PART.finditer(self.says) if found[2] not in PRINTED]
        if strange:
            raise ValueError(f"has braces without a term; is an f missing before the quotes: {' '.join(strange)}")

    def of(self, spec: Spec) -> str:
        return PART.sub(lambda found: f"{found[1]}{in_words(PRINTED[found[2]].of(spec))}{found[3]}", self.says)


@dataclass(frozen=True, slots=True)
class Search:
    """A nearest valid value that is searched for. The API server searches less far, or names all that is valid."""

    of: Callable[[Spec], str | None]
    says: str = ""
    """what the API server says, as `Cel.says` has it; empty: what it finds"""
    cel: tuple[str, ...] = ()
    """CEL of texts, each of them empty where nothing was found"""


NEAREST = "; nearest valid: "


def requires(field: Field, holds: Term, says: str, nearest: Search | None = None, shows: Term | bool = True) -> Rule:
    """Return the rule that a claim holds.

    `says` continues the sentence that begins with the field, and with its value if `shows`. It may end with the nearest
    valid value, and terms in it stand for their values.
    """
    value = value_of(field, shows)
    wrong, _, valid = says.partition(NEAREST)
    sentence, near = Text(wrong), nearest or (Text(valid) if valid else None)

    def judge(spec: Spec) -> Iterator[Problem]:
        if not holds.of(spec):
            given = ABSENT if value is None else value.of(spec)
            yield Problem(field.at, given, sentence.of(spec), near.of(spec) if near else None)

    begins = "" if value is None else f'"{value}" ' if value.cel_type == "string" else f"{value} "
    ends = f"{NEAREST}{near.says}" if near and near.says else ""
    claim = Cel(field.at, holds.cel, f"{begins}{wrong}{ends}", nearest.cel if nearest else ())
    return Rule(f"{field.at}: {plain(wrong)}", judge, (claim,))


def value_of(field: Field, shows: Term | bool) -> Term | None:
    """Return what a problem shows as the value of a field."""
    match shows:
        case Term():
            return shows
        case True if field.cel_type in SHOWN:
            return field
        case _:
            return None


def needs(field: Field, unless: Term, says: str) -> Rule:
    """Return the rule that a field is set."""
    return requires(field, unless | has(field), says, shows=False)


def unused(field: Field, unless: Term, says: str, shows: Term | bool = True) -> Rule:
    """Return the rule that a field has its default where another value would be accepted and ignored."""
    return requires(field, unless | is_default(field), says, shows=shows)


def only_in_python(reason: str) -> Callable[[Judge], Rule]:
    """Return a decorator for rules that the API server cannot judge."""
    return lambda judge: Rule(judge.__name__.replace("_", " "), judge, only_python=reason)


def elsewhere(rules: Iterable[Rule], spec: Spec, path: str, other: str) -> Iterator[Problem]:
    """Yield the problems of rules about the field at `path`, reported at another field."""
    for rule in rules:
        for problem in rule(spec):
            near = problem.nearest and problem.nearest.replace(path, other)
            yield replace(
                problem, field=problem.field.replace(path, other), rule=problem.rule.replace(path, other), nearest=near
            )
