"""Which weights of a checkpoint a quantiser must leave alone, and whether its `quantization_config` says so. Pure.

An online update quantises every 2-D `.weight` that is not on the list. An engine does not know the quantised names of a
router or an embedding, skips them, and computes with zeros.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

QUANTISED: Final = ("weight_packed", "qweight", "weight_scale", "weight_scale_inv", "scales")
"""parts of a matrix that is quantised"""
NEVER: Final = re.compile(
    r"(?:^|\.)(?:embed_tokens|word_embeddings|position_embeddings|wte|wpe|lm_head|patch_embed|eh_proj"
    r"|(?:mlp|block_sparse_moe|feed_forward)\.(?:gate|router)|shared_expert_gate|router)$"
)
"""modules with a 2-D weight that is not a linear layer, or that engines never quantise"""
LISTS: Final = ("ignore", "modules_to_not_convert", "ignored_layers")
"""where formats keep the list: compressed-tensors, AWQ and FP8, ModelOpt"""
LAYER: Final = re.compile(r"\.\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What the names, the shapes and the configuration of a checkpoint say."""

    method: str | None
    """None: it is not quantised"""
    ignore: tuple[str, ...]
    """the list of the configuration"""
    plain: tuple[str, ...]
    """modules whose 2-D weight must stay as it is"""
    unlisted: tuple[str, ...]
    """those of them that the list does not have, although there is one"""
    wrong: tuple[str, ...]
    """modules that are quantised and must not be"""

    @property
    def suggestion(self) -> tuple[str, ...]:
        """Return entries for the list that cover what is missing, one for a module of all layers."""
        return tuple(dict.fromkeys(map(pattern, (*self.unlisted, *self.wrong))))


def quantisation(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Quantisation:
    """Return what a checkpoint's `config.json` and tensors say of its quantisation."""
    said = config.get("quantization_config")
    given = said if isinstance(said, Mapping) else {}
    ignore = tuple(str(entry) for name in LISTS for entry in given.get(name) or ())
    matrices = {name.removesuffix(".weight") for name, axes in shapes.items() if is_matrix(name, axes)}
    packed = {module for module in modules(shapes) if any(f"{module}.{part}" in shapes for part in QUANTISED)}
    # In a quantised checkpoint every matrix that was left alone was left alone on purpose.
    plain = sorted(matrices - packed if said is not None else {each for each in matrices if NEVER.search(each)})
    return Quantisation(
        method=str(given.get("quant_method", "unnamed")) if said is not None else None,
        ignore=ignore,
        plain=tuple(plain),
        unlisted=tuple(each for each in plain if said is not None and not is_ignored(each, ignore)),
        wrong=tuple(sorted(each for each in packed if NEVER.search(each) and not each.endswith("lm_head"))),
    )


def is_matrix(name: str, axes: Sequence[int]) -> bool:
    return name.endswith(".weight") and len(axes) == 2


def modules(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Yield the names of the modules that the tensors belong to."""
    yield from {name.rpartition(".")[0] for name in shapes}


def is_ignored(module: str, ignore: Sequence[str]) -> bool:
    """Return whether a list has a module: its name, the end of it, its weight's name, or an expression for one of both.

    Formats differ: slime matches names of weights, compressed-tensors those of modules, AWQ a part of the name.
    """
    return any(
        any(re.match(entry.removeprefix("re:"), name) for name in (module, f"{module}.weight"))
        if entry.startswith("re:")
        else f".{entry.removesuffix('.weight')}." in f".{module}."
        for entry in ignore
    )


def pattern(module: str) -> str:
    """Return an entry that has a module in every layer: `re:.*mlp\\.gate(\\.weight)?$`."""
    *_, last = LAYER.split(f".{module}")
    return f"re:.*{re.escape(last.strip('.'))}(\\.weight)?$" if LAYER.search(f".{module}") else module
