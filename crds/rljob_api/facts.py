"""What is known of a field beside its type and its text: what a run needs for it to count, and its names elsewhere.

A fact stands on its field, in `Annotated`. The field's whole text, the rules, the search for the field that was meant
and the importers follow it; their tables have what is not plain.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Flag, auto
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

System = Literal["slime", "miles", "megatron", "sglang", "router", "verl", "nemo_rl"]


class Needs(Flag):
    """Parts of a run. A field needs those without which it has no effect."""

    NOTHING = 0
    CLUSTER = auto()
    """pods; `rljob run` has none"""
    LEARNER = auto()
    """absent with `debug.rolloutOnly`"""
    ENGINES = auto()
    """absent with `debug.replay`, whose samples are made, and with `sft`"""
    EVALUATION = auto()
    """absent with `debug.replay`"""
    SAMPLES = auto()
    """responses that the model makes and a reward scores; absent with `sft`"""


NOTHING = Needs.NOTHING
CLUSTER, LEARNER, ENGINES, EVALUATION, SAMPLES = Needs


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one field.

    A name of another system is a flag without leading dashes; words after it restrict it: `kl-coef (reward)`.
    """

    needs: Needs | None = None
    """None: as the section"""
    slime: str | tuple[str, ...] = ()
    miles: str | tuple[str, ...] = ()
    megatron: str | tuple[str, ...] = ()
    """slime takes these flags, too. A name with `_` is a field of Megatron's configuration without a flag"""
    sglang: str | tuple[str, ...] = ()
    router: str | tuple[str, ...] = ()
    """of sglang-router"""
    kubernetes: str = ""
    verl: str | tuple[str, ...] = ()
    """a key. Those of verl and NeMo-RL are not in the text"""
    nemo_rl: str | tuple[str, ...] = ()

    def names(self, system: System) -> tuple[str, ...]:
        """Return the field's names in a system, without the words after them."""
        return tuple(each.split()[0] for each in several(getattr(self, system)))

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the field's flags in all systems."""
        return tuple(name for system in TITLES for name in self.names(system) if "_" not in name)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return what the facts add to the field's text."""
        names = {title: ", ".join(map(written, several(getattr(self, system)))) for system, title in TITLES.items()}
        elsewhere = ", ".join(f"{title}: {given}" for title, given in names.items() if given)
        return (
            "Only in a cluster" if self.needs and CLUSTER in self.needs else "",
            elsewhere,
            f"Kubernetes: {self.kubernetes}" if self.kubernetes else "",
        )


TITLES: dict[System, str] = {
    "slime": "slime",
    "miles": "Miles",
    "megatron": "Megatron",
    "sglang": "SGLang",
    "router": "sglang-router",
}
"""systems with flags, as texts call them"""
NONE = Facts()


def several(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def written(name: str) -> str:
    """Return a name as users of its system write it."""
    return name if "_" in name.split()[0] else f"--{name}"


def facts(field: FieldInfo) -> Facts:
    """Return the facts of a field."""
    return next((mark for mark in field.metadata if isinstance(mark, Facts)), NONE)


def text(field: FieldInfo) -> str:
    """Return the text of a field, with what its facts add."""
    return ". ".join(filter(None, (field.description, *facts(field).sentences)))


def fields(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields below a model by their paths, `training.steps`, without those of sections in lists."""
    for name, field in model.model_fields.items():
        path = f"{above}{field.alias or name}"
        yield path, field
        if section := section_of(field.annotation):
            yield from fields(section, f"{path}.")


def named(model: type[BaseModel], system: System) -> dict[str, str]:
    """Return the paths of the fields that have a name in a system, by that name."""
    return {name: path for path, field in fields(model) for name in facts(field).names(system)}


def values(given: BaseModel, system: System) -> dict[str, Any]:
    """Return the values of the fields below a section, but absent ones, by their names in a system."""
    found: dict[str, Any] = {}
    for field, info in type(given).model_fields.items():
        value = getattr(given, field)
        found |= dict.fromkeys(facts(info).names(system), value) if value is not None else {}
        found |= values(value, system) if isinstance(value, BaseModel) else {}
    return found


def section_of(annotation: object) -> type[BaseModel] | None:
    """Return the model that a field of this type holds, if any."""
    options = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None)


def item_of(annotation: object) -> type[BaseModel] | None:
    """Return the model of which a field of this type holds a list, if any."""
    return section_of(get_args(annotation)[0]) if get_origin(annotation) is tuple else None
