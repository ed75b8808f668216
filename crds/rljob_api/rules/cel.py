"""CEL by which the API server judges a spec: claims, the sentences that they say, and how CEL spells values.

`terms.py` prints terms as CEL, `claims.py` makes a `Cel` of each rule, `crd.py` writes them into the CRD. CEL has no
variables: what several rules compute is printed in each of them.
"""

import re
from dataclasses import dataclass

from rljob_api.errors import LONGEST_VALUE

RESERVED = (
    *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"),
    *("namespace", "null", "package", "return", "true", "var", "void", "while"),
)
"""https://kubernetes.io/docs/reference/using-api/cel/#escaping"""
OFFSETS = [*range(1, 33)]
"""how far CEL looks for the nearest valid number; Python looks further"""


@dataclass(frozen=True, slots=True)
class Cel:
    """One claim about a spec, in CEL where `self` is the spec."""

    field: str
    """the field at fault when it does not hold, `spec.algorithm.clipLow`"""
    holds: str
    says: str
    """the rest of the sentence that begins with the field; `{...}` holds CEL, `"{...}"` CEL of a text"""
    nearest: tuple[str, ...] = ()
    """CEL of texts such as `stepsPerRollout 2 or 4`, each shown unless it is empty"""


PART = re.compile(r"""("?)\{((?:[^{}']|'[^']*')*)\}("?)""")


def sentence(text: str, nearest: tuple[str, ...] = ()) -> str:
    """Return CEL that makes a text: `{self.seed} is odd` -> `'%s is odd'.format([self.seed])`.

    One `format` and no `+`: the API server prices a concatenated text as endless, and refuses the rule.
    """
    values = [cut(found[2]) if found[1] else found[2] for found in PART.finditer(text)]
    template = PART.sub("%s", text.replace("%", "%%")) + ("%s" if nearest else "")
    return f"{literal(template)}.format([{', '.join([*values, *tail(nearest)])}])"


def has_values(text: str, nearest: tuple[str, ...]) -> bool:
    """Return whether a sentence differs from manifest to manifest."""
    return bool(nearest) or PART.search(text) is not None


def plain(text: str) -> str:
    """Return a sentence with an ellipsis for every value."""
    return PART.sub(lambda found: found[2].strip("'") if found[2].startswith("'") else "…", text)


def cut(text: str) -> str:
    """Return CEL for a text in quotes and not too long, as `errors.shown` has it."""
    whole, part = f"'\"%s\"'.format([{text}])", f"'\"%s…'.format([{text}.substring(0, {LONGEST_VALUE - 1})])"
    return f"{text}.size() > {LONGEST_VALUE - 2} ? {part} : {whole}"


def tail(nearest: tuple[str, ...]) -> list[str]:
    """Return CEL of `; nearest valid: A, or B` from those texts that are not empty."""
    if not nearest:
        return []
    ways = [literal(f"; nearest valid: {', or '.join(['%s'] * count)}") for count in range(1, len(nearest) + 1)]
    joined = " : ".join(f"t.size() == {count} ? {way}.format(t)" for count, way in enumerate(ways, 1))
    return [f"[[{', '.join(nearest)}].filter(n, n != '')].map(t, {joined} : '')[0]"]


def literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def near(name: str, now: str, valid: str, least: int, most: int) -> str:
    """Return CEL for the closest valid values of a field, below and above, as a text that is empty if there is none.

    `valid` is a claim about `v`, and `now` the present value.
    """
    side = f"{OFFSETS}.map(d, {now} + s * d).filter(v, v >= {least} && v <= {most} && ({valid}))"
    found = f"[-1, 1].map(s, {side}).filter(l, l.size() > 0).map(l, l[0])"
    said = f"f.size() == 2 ? '{name} %s or %s'.format(f) : f.size() == 1 ? '{name} %s'.format(f) : ''"
    return f"[{found}].map(f, {said})[0]"


def in_cel(name: str) -> str:
    """Return the name of a field as CEL spells it: the API server escapes words of the language."""
    return f"__{name}__" if name in RESERVED else name


def value(given: object) -> str:
    match given:
        case bool():
            return str(given).lower()
        case str():
            return literal(given)
        case _:
            return str(given)
