"""Settings of systems that are configured by YAML: each scalar by its dotted name, with its line.

Hydra and OmegaConf refer to other settings as `${policy.model_name}`; such references are followed. Other
interpolations, `${mul:…}` and `${oc.env:…}`, are not evaluated and named as unknown.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import yaml

from rljob_api.errors import ManifestError
from rljob_api.reading.document import Loader, check_size
from rljob_importing.words import Given, Word

REFERENCE = re.compile(r"\$\{(\.*)([A-Za-z_][\w.]*)\}")
INTERPOLATION = re.compile(r"\$\{[^{}]*[:$][^{}]*\}?")
MOST_REFERENCES = 10
"""how far a reference may lead to another one"""
MOST_CHARACTERS = 2**17
"""of a configuration"""
LONGEST_NAME = 1_000
LONGEST_VALUE = 2**16
"""of a value with its references followed [characters]"""
MOST_WORK = 2**24
"""characters of names and values that a configuration stands for, with aliases and references in full"""
ALL_TOO_LONG = f"stands for more than {MOST_WORK} characters, with its aliases in full"
ITEM = re.compile(r"""'([^']*)'|"([^"]*)"|([^\s,'"\[\]]+)""")


class SettingsError(ValueError):
    """A text that is not YAML mapping, or one that stands for too much."""


def from_yaml(text: str, file: str = "") -> tuple[Given, ...]:
    """Return the settings of a YAML mapping in its order. Raises SettingsError."""
    if len(text) > MOST_CHARACTERS:
        raise SettingsError(f"has {len(text)} characters; at most {MOST_CHARACTERS} are read")
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise SettingsError("not a mapping of settings")
        check_size(node)
        return tuple(_within_bounds(_settings(node, "", file)))
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingsError(" ".join(f"not YAML: {error}".split())) from error
    except ManifestError as error:
        raise SettingsError(error.problems[0].rule) from error
    finally:
        loader.dispose()


def _within_bounds(settings: Iterator[Given]) -> Iterator[Given]:
    """Yield the settings until they are too many characters together. Raises SettingsError."""
    characters = 0
    for given in settings:
        characters += len(given.name) + len(given.shown)
        if len(given.name) > LONGEST_NAME:
            raise SettingsError(f"line {given.line}: a name has more than {LONGEST_NAME} characters")
        if characters > MOST_WORK:
            raise SettingsError(ALL_TOO_LONG)
        yield given


def _settings(node: yaml.Node, name: str, file: str) -> Iterator[Given]:
    line = node.start_mark.line + 1
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                inner = str(key.value)[: LONGEST_NAME + 1]
                yield from _settings(value, f"{name}.{inner}"[: LONGEST_NAME + 1] if name else inner, file)
        case yaml.SequenceNode(value=items) if all(isinstance(item, yaml.ScalarNode) for item in items):
            if sum(len(item.value) for item in items) > MOST_WORK:
                raise SettingsError(f"line {line}: {ALL_TOO_LONG}")
            words = tuple(Word(str(item.value), line, file) for item in items)
            yield Given(name, words, f"{name}: [{', '.join(word.text for word in words)}]", line, file)
        case yaml.ScalarNode(value=value) if node.tag != "tag:yaml.org,2002:null":
            yield Given(name, (Word(str(value), line, file),), f"{name}: {value}", line, file)
        case _:
            return


def merged(*layers: Sequence[Given]) -> tuple[Given, ...]:
    """Return the settings of all layers; a later one replaces an earlier one of the same name."""
    return tuple({given.name: given for layer in layers for given in layer}.values())


def followed(settings: Sequence[Given]) -> tuple[Given, ...]:
    """Return the settings with their references followed, as far as they stay within the bounds."""
    follower = _Follower({given.name: given.text for given in settings if given.words})
    return tuple(
        replace(given, words=tuple(follower.followed(word, given.name) for word in given.words))
        if given.words
        else given
        for given in settings
    )


@dataclass(slots=True)
class _Follower:
    values: dict[str, str]
    work: int = 0

    def followed(self, word: Word, name: str) -> Word:
        """Return a word of the setting of this name. `${.b}` in `a.c` is `a.b`, as each further dot is a level up."""
        text = word.text
        for _ in range(MOST_REFERENCES):
            step = self._step(text, name)
            if step is None or step == text:
                break
            text = step
        left = INTERPOLATION.search(text) or REFERENCE.search(text)
        known = word.unknown or ((f"{left[0]} is not evaluated",) if left else ())
        return replace(word, text=text, unknown=known)

    def _step(self, text: str, name: str) -> str | None:
        """Return the text with each reference replaced by its value; None: it would be too long."""

        def value(found: re.Match[str]) -> str:
            return self.values.get(_absolute(found, name), found[0])

        length = len(text) + sum(len(value(found)) for found in REFERENCE.finditer(text))
        self.work += len(text)
        if length > len(text) + LONGEST_VALUE or self.work + length > MOST_WORK:
            return None
        self.work += length
        return REFERENCE.sub(value, text)


def _absolute(found: re.Match[str], name: str) -> str:
    """Return the full name of a reference that stands in the setting of this name."""
    levels, parts = len(found[1]), name.split(".")
    if not levels:
        return found[2]
    return ".".join([*parts[:-levels], found[2]]) if levels <= len(parts) else found[0]


def items(given: Given) -> tuple[str, ...]:
    """Return the entries of a list as Hydra writes it, `['a.parquet', 'b.parquet']`; one text is one entry."""
    if len(given.words) != 1 or not given.text.startswith("["):
        return tuple(word.text for word in given.words)
    return tuple(first or second or third for first, second, third in ITEM.findall(given.text))
