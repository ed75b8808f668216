"""YAML text to one plain mapping. What YAML itself can get wrong ends here, with line and column.

Scalars follow YAML 1.2's core schema: `2e-5` is a number, `no` and `on` are words, nothing becomes a date.
"""

import re
from collections.abc import Hashable, Mapping
from typing import Any

import yaml
from yaml.composer import Composer

from rljob_api.errors import ABSENT, ManifestError, Problem, first_problems
from rljob_api.reading.amount import MOST_NAMED, Amount, is_of_the_cluster

Document = dict[str, Any]

MOST_CHARACTERS = 1_500_000
"""of a manifest: an API server keeps no larger object"""
MOST_VALUES = 100_000
"""of a manifest, with each alias in full: ten short lines of aliases can stand for billions of values"""

SCALARS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)


INVISIBLE = {
    "\u00a0": "a no-break space (U+00A0), as copied from a web page; write a plain space",
    "\u200b": "a zero-width space (U+200B), as copied from a web page; delete it",
    "\u3000": "an ideographic space (U+3000); write a plain space",
}
"""characters that look like a space, or like nothing, and are part of a word for YAML"""
LINES_BEFORE = 4
"""lines up to the one of an error in which its cause is looked for: a word may go over several"""
MOST_KINDS, LONGEST_KIND = 8, 40
"""of objects that are named in a problem [objects, characters]"""
LIST = "List"
"""kind of what `kubectl get -o yaml` prints of several objects"""
TOO_MANY = Problem("manifest", ABSENT, f"stands for more than {MOST_VALUES} values, with its aliases in full")


class Loader(Composer, yaml.CSafeLoader):
    """PyYAML's safe loader with YAML 1.2's scalars, which notes keys that occur twice.

    libyaml reads the text, four times as fast. Python composes the nodes: libyaml's composer has no limit of nesting,
    and ends the process.
    """

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self.duplicates: list[Problem] = []
        self.values = 0
        self._amount = Amount()
        self._place: list[str] = []
        """keys on the way to the node that is being composed; a list has none"""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.values += 1
        if self.values > MOST_VALUES:
            raise ManifestError((TOO_MANY,))
        if not is_of_the_cluster(self._place):
            self._amount.add(tuple(self._place[:MOST_NAMED]), 1)
            if self._amount.is_too_much:
                raise ManifestError((self._amount.problem,))
        key: object = index
        if not isinstance(key, yaml.ScalarNode):
            return super().compose_node(parent, index)
        self._place.append(key.value)
        try:
            return super().compose_node(parent, index)
        finally:
            self._place.pop()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                rule = f"occurs twice, first on line {seen[key.value].line + 1}"
                self.duplicates.append(Problem(place(key.start_mark), key.value, rule))
            elif isinstance(key, yaml.ScalarNode):
                seen[key.value] = key.start_mark
        return super().construct_mapping(node, deep)

    def whole_number(self, node: yaml.ScalarNode) -> int:
        return int(node.value)

    def number(self, node: yaml.ScalarNode) -> float:
        return float(re.sub(r"\.(?=[iInN])", "", node.value))


Loader.yaml_implicit_resolvers = {}
for tag, pattern, first_letters in SCALARS:
    Loader.add_implicit_resolver(tag, re.compile(rf"^(?:{pattern})$"), ["" if c == "\0" else c for c in first_letters])
Loader.add_constructor("tag:yaml.org,2002:int", Loader.whole_number)
Loader.add_constructor("tag:yaml.org,2002:float", Loader.number)


def document(text: str) -> Document:
    """Return the one mapping in the text. Raises ManifestError."""
    if len(text) > MOST_CHARACTERS:
        raise ManifestError((Problem("manifest", ABSENT, f"has {len(text)} characters; at most {MOST_CHARACTERS}"),))
    try:
        documents, duplicates = read(text)
    except yaml.MarkedYAMLError as error:
        raise ManifestError((_not_yaml(text, error),)) from error
    except yaml.reader.ReaderError as error:
        raise ManifestError((Problem(f"character {error.position}", ABSENT, f"not YAML: {error.reason}"),)) from error
    except RecursionError as error:
        raise ManifestError((Problem("manifest", ABSENT, "is nested too deeply"),)) from error
    except ManifestError:
        raise
    except (ValueError, KeyError) as error:  # an explicit tag, such as `!!int abc`
        raise ManifestError((Problem("manifest", ABSENT, f"not YAML: {error}"),)) from error
    if duplicates:
        raise ManifestError(first_problems(duplicates))
    if len(documents) != 1:
        found = "is empty" if not documents else f"holds {len(documents)} documents{_kinds(documents)}"
        raise ManifestError((Problem("manifest", ABSENT, f"{found}; one RLJob is expected"),))
    if isinstance(documents[0], Mapping) and documents[0].get("kind") == LIST:
        items = documents[0].get("items")
        listed = items if isinstance(items, list) else []
        rule = f"holds a List of {len(listed)} objects{_kinds(listed)}; one RLJob is expected: name it to kubectl get"
        raise ManifestError((Problem("manifest", ABSENT, rule),))
    if not isinstance(documents[0], Mapping):
        raise ManifestError((Problem("manifest", documents[0], "is not a mapping; an RLJob is expected"),))
    return dict(documents[0])


def read(text: str) -> tuple[list[object], list[Problem]]:
    """Return the documents that are not empty, and the keys that occur twice in them."""
    loader = Loader(text)
    try:
        documents = []
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "check_node has seen one"
            check_size(node)
            documents.append(loader.construct_document(node))
        return [found for found in documents if found is not None], loader.duplicates
    finally:
        loader.dispose()


def check_size(root: yaml.Node) -> None:
    """Raise ManifestError if the document has too many values, each alias in full, or one contains itself."""
    sizes: dict[int, int | None] = {}
    if size(root, sizes) > MOST_VALUES:
        raise ManifestError((TOO_MANY,))


def size(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Return the number of values in a node, or more than `MOST_VALUES`.

    `sizes` keeps those of seen nodes; None: of one that is not finished.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1
    known = sizes.get(id(node), 0)
    if known is None:
        raise ManifestError((Problem("manifest", ABSENT, "contains itself through an alias"),))
    if not known:
        sizes[id(node)] = None
        children = [child for pair in node.value for child in (pair if isinstance(pair, tuple) else (pair,))]
        known = sizes[id(node)] = min(1 + sum(size(child, sizes) for child in children), MOST_VALUES + 1)
    return known


def _kinds(objects: list[object]) -> str:
    """Return the kinds of objects, each once, as ` (ConfigMap, RLJob)`; empty: none has a kind."""
    given = [each.get("kind") for each in objects[:MOST_KINDS] if isinstance(each, Mapping)]
    kinds = sorted({kind[:LONGEST_KIND] for kind in given if isinstance(kind, str)})
    return f" ({', '.join(kinds)})" if kinds else ""


def _not_yaml(text: str, error: yaml.MarkedYAMLError) -> Problem:
    """Return the problem of a text that is not YAML; an invisible character there or just before is named instead."""
    mark = error.problem_mark
    until = 0 if mark is None else mark.line + 1
    lines = text.split("\n", until)[:until]
    # The end of a text can be a line that it does not have.
    for number, line in list(enumerate(lines))[max(0, until - LINES_BEFORE) :]:
        column = next((at for at, char in enumerate(line) if char in INVISIBLE), None)
        if column is not None:
            found = INVISIBLE[line[column]]
            return Problem(f"line {number + 1}, column {column + 1}", ABSENT, f"not YAML: {found}")
    return Problem(place(mark), ABSENT, f"not YAML: {reason(error)}")


def reason(error: yaml.MarkedYAMLError) -> str:
    return ", ".join(part for part in (error.context, error.problem) if part)


def place(mark: yaml.Mark | None) -> str:
    return "manifest" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
