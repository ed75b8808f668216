"""Shows what `rljob inspect` finds in a Hugging Face checkpoint: its files, and what a quantiser must leave alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_api.sizing.linear import left_alone, quantised
from rljob_api.sizing.quantised import FORMATS
from rljob_api.sizing.tensors import Axes
from rljob_cli.terminal.formats import size
from rljob_trainer.preflight.model_files import contents
from rljob_trainer.preflight.quantisation import LAYER, Quantisation, quantisation
from rljob_trainer.preflight.weights import absent, damaged, read_weights, shapes_of

CONFIG = "config.json"
MOST_NAMES = 12


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A Hugging Face checkpoint."""

    path: str
    architecture: str
    tensors: int
    files: int
    size: int
    """bytes"""
    quantisation: Quantisation
    formats: tuple[str, ...] = ()
    """values of `rollout.quantization` that can quantise it; none of a checkpoint that is quantised already"""
    linear_layers: tuple[str, ...] = ()
    """modules that are quantised then"""
    ignored: tuple[str, ...] = ()
    """the list that engines get then: `modules_to_not_convert` with Fp8, `ignore` with Int4"""
    problems: tuple[str, ...] = ()


def is_model(path: Path) -> bool:
    """Return whether a directory is a Hugging Face checkpoint."""
    return (path / CONFIG).is_file() and any(path.glob("*.safetensors"))


def facts_of(path: Path) -> ModelFacts:
    """Return what the headers of a checkpoint say. Raises ManifestError if its configuration cannot be read."""
    config = contents(path, CONFIG) or {}
    weights = read_weights(path, config)
    broken = tuple(damaged(weights))
    shapes = {} if broken else shapes_of(weights)
    found = quantisation(config, shapes)
    layers = quantised(shapes) if found.method is None else ()
    faults = [f"{each.value}: {each.rule}" for each in (*broken, *(() if broken else absent(weights)))]
    return ModelFacts(
        path=str(path),
        architecture=", ".join(map(str, config.get("architectures") or ())) or "unnamed",
        tensors=len(shapes),
        files=len(weights.files),
        size=sum(file.size for file in weights.files),
        quantisation=found,
        formats=tuple(_formats(layers, shapes)),
        linear_layers=layers,
        ignored=left_alone(shapes) if layers else (),
        problems=(*faults, *_of_the_list(found)),
    )


def _formats(layers: Sequence[str], shapes: Mapping[str, Axes]) -> Iterator[str]:
    """Yield the formats that fit the matrices of all these layers."""
    for kind, format_ in FORMATS.items():
        if layers and all(format_.misfit(shapes[f"{layer}.weight"]) is None for layer in layers):
            yield kind


def _of_the_list(found: Quantisation) -> Iterator[str]:
    if found.unlisted:
        yield (
            f"{CONFIG}: quantization_config does not ignore {_some(found.unlisted)}: an update of weights would"
            " quantise what the engine expects as it is"
        )
    if found.wrong:
        yield f"{_some(found.wrong)}: quantised, and no engine reads that"


def as_json(facts: ModelFacts) -> str:
    return json.dumps([{"kind": "model"} | asdict(facts) | {"suggestion": facts.quantisation.suggestion}], indent=2)


def as_table(facts: ModelFacts) -> RenderableType:
    found = facts.quantisation
    rows = Table(box=None, show_header=False, pad_edge=False)
    rows.add_column()
    rows.add_column(overflow="fold")
    for name, value in (
        ("model", facts.architecture),
        ("tensors", f"{facts.tensors} in {facts.files} files, {size(facts.size)}"),
        ("quantised", found.method or "no"),
        ("ignored", _some(found.ignore) if found.method else "nothing is quantised"),
        ("no linear layer" if found.method is None else "not quantised", _some(found.plain)),
        *_of_formats(facts),
        ("state", "damaged" if facts.problems else "sound"),
    ):
        rows.add_row(name, Text(value))
    suggestion = [Text("add to quantization_config.ignore:")] if found.suggestion else []
    return Group(
        Text(f"model {facts.path}", style="bold"),
        rows,
        *(Text(f"wrong: {problem}", style="red") for problem in facts.problems),
        *suggestion,
        *(Text(f"  {json.dumps(entry)}") for entry in found.suggestion),
    )


def _of_formats(facts: ModelFacts) -> Iterator[tuple[str, str]]:
    if facts.linear_layers:
        layers = facts.linear_layers
        yield f"with {' or '.join(facts.formats)}", f"{len(layers)} linear layers quantised: {_grouped(layers)}"
        yield "ignore list", _grouped(facts.ignored)


def _grouped(modules: Sequence[str]) -> str:
    """Return modules with a star for the numbers of layers and experts."""
    return ", ".join(dict.fromkeys(LAYER.sub(".*", module) for module in modules)) or "nothing"


def _some(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"
