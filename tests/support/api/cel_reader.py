"""A second reader of the CEL that rules print: it judges manifests without an API server, and knows nothing of terms.

It reads what claims are made of, and little of what messages are made of. It is stricter than CEL: it compares values
of one type only, and an error on the left of `||` is an error.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

Manifest = Mapping[str, Any]
Evaluate = Callable[[Manifest], Any]

TOKEN = re.compile(
    r"\s*(?:(\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)|(\d+)|('(?:[^'\\]|\\.)*')|(\w+)|(\.\?|\|\||&&|[=!<>]=|.))"
)
ABSENT = object()
COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
}
METHODS: Mapping[str, Callable[..., Any]] = {
    "size": len,
    "contains": lambda text, part: part in text,
    "startsWith": lambda text, part: text.startswith(part),
    "split": lambda text, separator: text.split(separator),
    "matches": lambda text, pattern: re.search(pattern.removesuffix("$") + r"\Z", text, re.ASCII) is not None,
    "replace": lambda text, old, new: text.replace(old, new),
    "lastIndexOf": lambda text, part: text.rfind(part),
    "substring": lambda text, *bounds: text[slice(*bounds) if len(bounds) == 2 else slice(bounds[0], None)],
    "format": lambda text, values: text % tuple(values),
    "hasValue": lambda value: value is not ABSENT,
    "orValue": lambda value, usual: usual if value is ABSENT else value,
}
MACROS: Mapping[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "exists": lambda entries, claim: any(boolean(claim(each)) for each in entries),
    "filter": lambda entries, claim: [each for each in entries if boolean(claim(each))],
    "map": lambda entries, made: [made(each) for each in entries],
}
FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {"double": float, "dyn": lambda value: value}


class CelError(Exception):
    """What the API server would refuse to evaluate."""


def read(text: str) -> Evaluate:
    """Return what judges the variables of an expression: `read("self.seed > 0")({"self": {"seed": 1}})` is true."""
    reader = Reader(text)
    expression = reader.conditional()
    if reader.tokens[reader.at :] != [("", "")]:
        raise CelError(f"cannot read {reader.tokens[reader.at :]} of {text}")
    return expression


class Reader:
    """Reads one expression from left to right."""

    def __init__(self, text: str) -> None:
        self.tokens = [tokenized(found) for found in TOKEN.finditer(text)] + [("", "")]
        self.at = 0

    def take(self, *options: str) -> str | None:
        kind, text = self.tokens[self.at]
        if (kind != "word" and kind != "sign") or text not in options:
            return None
        self.at += 1
        return text

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise CelError(f"expected {sign} before {self.tokens[self.at :]}")

    def conditional(self) -> Evaluate:
        asked = self.disjunction()
        if not self.take("?"):
            return asked
        yes = self.disjunction()
        self.expect(":")
        no = self.conditional()
        return lambda given: yes(given) if boolean(asked(given)) else no(given)

    def disjunction(self) -> Evaluate:
        terms = [self.conjunction()]
        while self.take("||"):
            terms.append(self.conjunction())
        return terms[0] if len(terms) == 1 else lambda given: any(boolean(term(given)) for term in terms)

    def conjunction(self) -> Evaluate:
        terms = [self.relation()]
        while self.take("&&"):
            terms.append(self.relation())
        return terms[0] if len(terms) == 1 else lambda given: all(boolean(term(given)) for term in terms)

    def relation(self) -> Evaluate:
        left = self.arithmetic(("+", "-"))
        while sign := self.take(*COMPARISONS, "in"):
            left = related(left, sign, self.arithmetic(("+", "-")))
        return left

    def arithmetic(self, signs: tuple[str, ...]) -> Evaluate:
        def operand() -> Evaluate:
            return self.arithmetic(("*", "/", "%")) if signs == ("+", "-") else self.unary()

        left = operand()
        while sign := self.take(*signs):
            left = computed(left, sign, operand())
        return left

    def unary(self) -> Evaluate:
        if self.take("!"):
            claim = self.unary()
            return lambda given: not boolean(claim(given))
        if self.take("-"):
            number = self.unary()
            return lambda given: -number(given)
        return self.member()

    def member(self) -> Evaluate:
        value = self.primary()
        while sign := self.take(".", ".?", "["):
            if sign == "[":
                index = self.conditional()
                self.expect("]")
                value = indexed(value, index)
                continue
            name = self.name()
            value = self.method(value, name) if self.take("(") else selected(value, name, optional=sign == ".?")
        return value

    def method(self, value: Evaluate, name: str) -> Evaluate:
        if name in MACROS:
            variable = self.name()
            self.expect(",")
            (inner,) = self.arguments(")")
            return lambda given: MACROS[name](value(given), lambda each: inner({**given, variable: each}))
        arguments = self.arguments(")")
        return lambda given: METHODS[name](value(given), *(argument(given) for argument in arguments))

    def primary(self) -> Evaluate:
        kind, text = self.tokens[self.at]
        self.at += 1
        match kind, text:
            case "sign", "(":
                (inner,) = self.arguments(")")
                return inner
            case "sign", "[":
                entries = self.arguments("]")
                return lambda given: [entry(given) for entry in entries]
            case "constant", _:
                return lambda _: text
            case "word", "true" | "false":
                return lambda _: text == "true"
            case "word", "has":
                return self.presence()
            case "word", _ if self.take("("):
                (argument,) = self.arguments(")")
                return lambda given: FUNCTIONS[text](argument(given))
            case "word", _:
                return lambda given: given[text]
        raise CelError(f"cannot begin with {text}")

    def presence(self) -> Evaluate:
        """Read the rest of `has(self.a.b)`: whether b is there, where a has to be."""
        self.expect("(")
        section: Evaluate = self.primary()
        self.expect(".")
        name = self.name()
        while self.take("."):
            section, name = selected(section, name, optional=False), self.name()
        self.expect(")")
        return lambda given: name in section(given)

    def arguments(self, end: str) -> list[Evaluate]:
        found: list[Evaluate] = []
        while not self.take(end):
            found.append(self.conditional())
            self.take(",")
        return found

    def name(self) -> str:
        _, text = self.tokens[self.at]
        self.at += 1
        return str(text).strip("_")


def tokenized(found: re.Match[str]) -> tuple[str, Any]:
    number, whole, text, word, sign = found.groups()
    if text is not None:
        return "constant", re.sub(r"\\(.)", r"\1", text[1:-1])
    if number or whole:
        return "constant", float(number) if number else int(whole)
    return ("word", word) if word else ("sign", sign)


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"{value!r} is neither true nor false")
    return value


def related(left: Evaluate, sign: str, right: Evaluate) -> Evaluate:
    def evaluate(given: Manifest) -> bool:
        one, two = left(given), right(given)
        if sign == "in":
            return one in two
        if type(one) is not type(two):
            raise CelError(f"{one!r} {sign} {two!r}")
        return bool(COMPARISONS[sign](one, two))

    return evaluate


def computed(left: Evaluate, sign: str, right: Evaluate) -> Evaluate:
    return lambda given: ARITHMETIC[sign](left(given), right(given))


def indexed(value: Evaluate, index: Evaluate) -> Evaluate:
    return lambda given: value(given)[index(given)]


def selected(value: Evaluate, name: str, *, optional: bool) -> Evaluate:
    def evaluate(given: Manifest) -> Any:
        section = value(given)
        if optional and (section is ABSENT or name not in section):
            return ABSENT
        if name not in section:
            raise CelError(f"no such key: {name}")
        return section[name]

    return evaluate
