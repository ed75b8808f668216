"""Settings of systems that are configured by YAML: each scalar by its dotted name, with its line.

Hydra and OmegaConf refer to other settings as `${policy.model_name}`; such references are followed. Other
interpolations, `${mul:…}` and `${oc.env:…}`, are not evaluated and named as unknown.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import yaml

from rljob_api.importing.words import Given, Word
from rljob_api.reading.document import Loader

REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
INTERPOLATION = re.compile(r"\$\{[^{}]*[:$][^{}]*\}?")
MOST_REFERENCES = 10
"""how far a reference may lead to another one"""
ITEM = re.compile(r"""'([^']*)'|"([^"]*)"|([^\s,'"\[\]]+)""")


class SettingsError(ValueError):
    """A text that is no YAML mapping."""


def from_yaml(text: str, file: str = "") -> tuple[Given, ...]:
    """Return the settings of a YAML mapping in its order. Raises SettingsError."""
    loader = Loader(text)
    try:
        node = loader.get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingsError(" ".join(f"not YAML: {error}".split())) from error
    finally:
        loader.dispose()
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError("not a mapping of settings")
    return tuple(_settings(node, "", file))


def _settings(node: yaml.Node, name: str, file: str) -> Iterator[Given]:
    line = node.start_mark.line + 1
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                yield from _settings(value, f"{name}.{key.value}" if name else str(key.value), file)
        case yaml.SequenceNode(value=items) if all(isinstance(item, yaml.ScalarNode) for item in items):
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
    """Return the settings with their references followed."""
    values = {given.name: given.text for given in settings if given.words}
    return tuple(
        replace(given, words=tuple(_followed(word, values) for word in given.words)) if given.words else given
        for given in settings
    )


def _followed(word: Word, values: dict[str, str]) -> Word:
    text = word.text
    for _ in range(MOST_REFERENCES):
        step = REFERENCE.sub(lambda found: values.get(found[1], found[0]), text)
        if step == text or len(step) > 2**16:
            break
        text = step
    left = INTERPOLATION.search(text) or REFERENCE.search(text)
    known = word.unknown or ((f"{left[0]} is not evaluated",) if left else ())
    return replace(word, text=text, unknown=known)


def items(given: Given) -> tuple[str, ...]:
    """Return the entries of a list as Hydra writes it, `['a.parquet', 'b.parquet']`; one text is one entry."""
    if len(given.words) != 1 or not given.text.startswith("["):
        return tuple(word.text for word in given.words)
    return tuple(first or second or third for first, second, third in ITEM.findall(given.text))
