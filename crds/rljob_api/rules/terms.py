"""Terms over the fields of a spec: each computes its value in Python and prints itself as CEL. Pure.

    SPEC.algorithm.clip_low <= SPEC.algorithm.clip_high
        .of(spec)  ──► True
        .cel       ──► self.algorithm.clipLow <= self.algorithm.clipHigh

A wrong name, a wrong type and a missing pair of parentheses fail when the rule is declared, not when it is judged.
In CEL a field may be zero or negative when a rule meets it: the schema refuses it too, but does not come first. So no
division may fail on one.
"""

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from itertools import takewhile
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rljob_api.rules.cel import in_cel, value
from rljob_api.sections import Spec

CelType = Literal["bool", "int", "double", "string", "list", "object"]
Constant = bool | int | float | str | tuple[str, ...]
CONDITIONAL, OR, AND, RELATION, SUM, PRODUCT, UNARY, PRIMARY = range(8)
"""how tightly CEL's operators bind, loosest first"""


@dataclass(frozen=True, eq=False)
class Term:
    """What every term can do. Its attributes have names that no field of a manifest has: see `Field`."""

    cel_type: CelType
    cel: str
    of: Callable[[Any], Any]
    """the value for a spec. Raises AttributeError where a field could not be read, LookupError in an absent section"""
    binds: int = PRIMARY

    def __format__(self, _: str) -> str:
        """Return what stands for the term in a sentence: `f"is more than {SPEC.seed}"`; `claims.Text` reads it."""
        return printed(self)

    def __bool__(self) -> bool:
        raise TypeError(f"a term has no truth value before it is judged; use &, | and ~: {self.cel}")

    def __or__(self, other: "Term") -> "Term":
        one, two = claims(self, other)
        return Expression(
            "bool", f"{within(one, OR)} || {within(two, OR)}", lambda spec: one.of(spec) or two.of(spec), OR
        )

    def __and__(self, other: "Term") -> "Term":
        one, two = claims(self, other)
        return Expression(
            "bool", f"{within(one, AND)} && {within(two, AND)}", lambda spec: one.of(spec) and two.of(spec), AND
        )

    def __invert__(self) -> "Term":
        (claim,) = claims(self)
        return Expression("bool", f"!{within(claim, UNARY)}", lambda spec: not claim.of(spec), UNARY)

    def __eq__(self, other: "Term | Constant") -> "Term":  # type: ignore[override]  # a claim, not a comparison
        return compared(self, "==", operator.eq, other)

    def __ne__(self, other: "Term | Constant") -> "Term":  # type: ignore[override]  # as above
        return compared(self, "!=", operator.ne, other)

    def __lt__(self, other: "Term | Constant") -> "Term":
        return compared(self, "<", operator.lt, other)

    def __le__(self, other: "Term | Constant") -> "Term":
        return compared(self, "<=", operator.le, other)

    def __gt__(self, other: "Term | Constant") -> "Term":
        return compared(self, ">", operator.gt, other)

    def __ge__(self, other: "Term | Constant") -> "Term":
        return compared(self, ">=", operator.ge, other)

    def __add__(self, other: "Term | Constant") -> "Term":
        return computed(self, "+", operator.add, other, SUM)

    def __sub__(self, other: "Term | Constant") -> "Term":
        return computed(self, "-", operator.sub, other, SUM)

    def __mul__(self, other: "Term | Constant") -> "Term":
        return computed(self, "*", operator.mul, other, PRODUCT)

    def __floordiv__(self, other: "Term | Constant") -> "Term":
        return computed(self, "/", operator.floordiv, other, PRODUCT)

    def __mod__(self, other: "Term | Constant") -> "Term":
        return computed(self, "%", operator.mod, other, PRODUCT)


@dataclass(frozen=True, eq=False)
class Expression(Term):
    """A term that is put together from others, or written by hand in both languages."""


@dataclass(frozen=True, eq=False)
class Field(Term):
    """A field of a spec, or of an entry of a list; its attributes are the fields below it, by their Python names."""

    route: tuple[tuple[str, FieldInfo], ...] = ()
    """the names from the root with their declarations"""
    section: type[BaseModel] | None = None
    """the model of its content, when it is a section or a list of sections"""
    root: str = "self"

    def __getattr__(self, name: str) -> "Field":
        if self.section is None or name not in self.section.model_fields:
            raise AttributeError(f"{self.cel} has no field {name}")
        return field(self.root, (*self.route, (name, self.section.model_fields[name])))

    @property
    def at(self) -> str:
        """Return the path in the manifest: `spec.algorithm.clipLow`."""
        return ".".join(("spec", *(alias(*step) for step in self.route)))

    @property
    def alias(self) -> str:
        """Return the name in its section: `clipLow`."""
        return alias(*self.route[-1])


def field(root: str, route: tuple[tuple[str, FieldInfo], ...]) -> Field:
    names = tuple(name for name, _ in route)
    annotation = route[-1][1].annotation
    cel = ".".join((root, *(in_cel(alias(*step)) for step in route)))
    return Field(
        type_of(annotation), cel, lambda spec: read(spec, names), route=route, section=model_of(annotation), root=root
    )


def alias(name: str, info: FieldInfo) -> str:
    return info.alias or name


def read(thing: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if thing is None:
            raise LookupError(f"{'.'.join(names)}: read without asking whether what holds {name} is there")
        thing = getattr(thing, name)
    return thing


def type_of(annotation: Any) -> CelType:
    """Return the type that CEL gives a field of this annotation."""
    options = [option for option in get_args(annotation) if option is not type(None)]
    origin = get_origin(annotation)
    if origin is Literal:
        return type_of(type(options[0]))
    if origin is tuple:
        return "list"
    if origin is Annotated or (options and origin is not dict):
        return type_of(options[0])
    names: dict[type, CelType] = {bool: "bool", int: "int", float: "double", str: "string"}
    kinds = (name for kind, name in names.items() if isinstance(annotation, type) and issubclass(annotation, kind))
    return next(kinds, "object")


def model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a section, of an optional one, or of the entries of a list."""
    options = (annotation, *get_args(annotation))
    return next((each for each in options if isinstance(each, type) and issubclass(each, BaseModel)), None)


SPEC = Field("object", "self", lambda spec: spec, section=Spec)


def fields_of(section: Field, *names: str) -> tuple[Field, ...]:
    """Return these fields of a section, or all of them."""
    return tuple(getattr(section, name) for name in names or section.section.model_fields)  # type: ignore[union-attr]


def within(term: Term, binds: int) -> str:
    """Return a term for use beside an operator that binds so tightly."""
    return f"({term.cel})" if term.binds < binds else term.cel


def claims(*terms: Term) -> tuple[Term, ...]:
    """Return terms that are true or false. Raises TypeError for others: a comparison lacks its parentheses."""
    for term in terms:
        if term.cel_type != "bool":
            raise TypeError(f"is not a claim, but of type {term.cel_type}: {term.cel}")
    return terms


def compared(one: Term, sign: str, how: Callable[[Any, Any], Any], other: Term | Constant) -> Term:
    left, right = alike(one, other)
    text = f"{within(left, RELATION + 1)} {sign} {within(right, RELATION + 1)}"
    return Expression("bool", text, lambda spec: how(left.of(spec), right.of(spec)), RELATION)


def computed(one: Term, sign: str, how: Callable[[Any, Any], Any], other: Term | Constant, binds: int) -> Term:
    left, right = alike(one, other)
    text = f"{within(left, binds)} {sign} {within(right, binds + 1)}"
    return Expression(left.cel_type, text, lambda spec: how(left.of(spec), right.of(spec)), binds)


def alike(one: Term, other: Term | Constant) -> tuple[Term, Term]:
    """Return both as terms of one type: CEL has no operator between a whole number and another."""
    two = as_term(other)
    if (one.cel_type, two.cel_type) == ("double", "int"):
        return one, double(two)
    if (one.cel_type, two.cel_type) == ("int", "double"):
        return double(one), two
    if one.cel_type != two.cel_type:
        raise TypeError(f"{one.cel_type} and {two.cel_type}: {one.cel} and {two.cel}")
    return one, two


def double(whole: Term) -> Term:
    if isinstance(whole, Fixed):
        return as_term(float(whole.given))
    return Expression("double", f"double({whole.cel})", whole.of)


@dataclass(frozen=True, eq=False)
class Fixed(Term):
    """A constant."""

    given: Any = None


def as_term(given: Term | Constant) -> Term:
    """Return a constant as a term."""
    match given:
        case Term():
            return given
        case Enum():
            return as_term(given.value)
        case tuple():
            return Fixed("list", f"[{', '.join(map(value, given))}]", lambda _: given, given=given)
        case _:
            binds = UNARY if value(given).startswith("-") else PRIMARY
            return Fixed(type_of(type(given)), value(given), lambda _: given, binds, given)


PRINTED: dict[str, Term] = {}
"""the terms of all sentences by their CEL: what is printed alike is judged alike"""


def printed(term: Term) -> str:
    if isinstance(term, Fixed) and "{" not in term.cel:
        return in_words(term.given)
    PRINTED[term.cel] = term
    return f"{{{term.cel}}}"


def in_words(given: object) -> str:
    return str(given).lower() if isinstance(given, bool) else str(given)


def named(term: Term) -> Term:
    """Return a term in parentheses, for use within CEL that is written by hand."""
    return Expression(term.cel_type, f"({term.cel})", term.of)


def when(claim: Term, yes: Term | Constant, no: Term | Constant) -> Term:
    """Return one of two terms."""
    (asked,) = claims(claim)
    one, two = alike(as_term(yes), no)
    text = f"{within(asked, OR)} ? {within(one, OR)} : {two.cel}"
    return Expression(one.cel_type, text, lambda spec: (one if asked.of(spec) else two).of(spec), CONDITIONAL)


def all_of(*terms: Term) -> Term:
    return reduce(operator.and_, terms)


def any_of(*terms: Term) -> Term:
    return reduce(operator.or_, terms)


def has(given: Field) -> Term:
    """Return the claim that a field is there; the section that holds it has to be."""
    return Expression("bool", f"has({given.cel})", lambda spec: given.of(spec) is not None)


def or_else(given: Field, otherwise: Term | Constant) -> Term:
    """Return a field, or another value where it or a section that holds it is absent."""
    usual = alike(given, otherwise)[1]
    steps = [in_cel(alias(*step)) for step in given.route]
    sure = len(list(takewhile(is_always_there, given.route)))
    cel = ".?".join((".".join((given.root, *steps[:sure])), *steps[sure:]))

    def found(spec: Any) -> Any:
        thing = spec
        for name, _ in given.route:
            thing = None if thing is None else getattr(thing, name)
        return usual.of(spec) if thing is None else thing

    return Expression(given.cel_type, f"{cel}.orValue({usual.cel})", found)


def is_always_there(step: tuple[str, FieldInfo]) -> bool:
    return step[1].is_required() or default_of(step[1]) is not None


def default_of(info: FieldInfo) -> Any:
    return info.get_default(call_default_factory=True)


def default(given: Field) -> Any:
    """Return the value of a field that a manifest leaves out."""
    return default_of(given.route[-1][1])


def is_default(given: Field) -> Term:
    """Return the claim that a field has its default."""
    match default(given):
        case None:
            return ~has(given)
        case ():
            return size(given) == 0
        case usual:
            return compared(given, "==", operator.eq, usual)


def one_of(term: Term, options: Iterable[str]) -> Term:
    known = tuple(map(str, options))
    text = f"{within(term, SUM)} in {as_term(known).cel}"
    return Expression("bool", text, lambda spec: term.of(spec) in known, RELATION)


def size(term: Term) -> Term:
    return Expression("int", f"{within(term, PRIMARY)}.size()", lambda spec: len(term.of(spec)))


def text_of(term: Term) -> Term:
    return Expression("string", f"string({term.cel})", lambda spec: str(term.of(spec)))


def first(term: Term) -> Term:
    """Return the first of a list of texts."""
    return Expression("string", f"{within(term, PRIMARY)}[0]", lambda spec: term.of(spec)[0])


def exists(given: Field, variable: str, claim: Callable[[Field], Term]) -> Term:
    """Return the claim that some entry of a list of sections fulfils a claim."""
    inner = claim(Field("object", variable, lambda entry: entry, section=given.section, root=variable))
    text = f"{given.cel}.exists({variable}, {inner.cel})"
    return Expression("bool", text, lambda spec: any(inner.of(entry) for entry in given.of(spec)))


def differs(one: Field, other: Field) -> Term:
    """Return the claim that two texts or numbers differ, which may be absent."""
    there, also = has(one).cel, has(other).cel
    text = f"({there} ? !{also} || {one.cel} != {other.cel} : {also})"
    return Expression("bool", text, lambda spec: one.of(spec) != other.of(spec))


def contains(term: Term, part: str) -> Term:
    return Expression("bool", call(term, "contains", part), lambda spec: part in term.of(spec))


def starts_with(term: Term, part: str) -> Term:
    return Expression("bool", call(term, "startsWith", part), lambda spec: term.of(spec).startswith(part))


def before(term: Term, separator: str) -> Term:
    """Return a text up to the first separator, or all of it."""
    return Expression("string", f"{call(term, 'split', separator)}[0]", lambda spec: term.of(spec).split(separator)[0])


def matches(term: Term, pattern: re.Pattern[str]) -> Term:
    """Return the claim that a pattern matches the whole text."""
    # Without the names of groups, which only make the CRD longer.
    unnamed = re.sub(r"[?]P<\w+>", "", pattern.pattern)
    text = call(term, "matches", f"^{unnamed}$")
    return Expression("bool", text, lambda spec: pattern.fullmatch(term.of(spec)) is not None)


def call(term: Term, method: str, argument: str) -> str:
    return f"{within(term, PRIMARY)}.{method}({value(argument)})"
