"""Writes `rljob_api/rules/arguments.json`: the arguments that SGLang, Megatron-core and reasoning-gym accept.

Run `make generate` after changing one of those pins. It needs the trainer's packages; the API reads only the file.
A test fails when the file and the installed packages differ.
"""

import argparse
import dataclasses
import enum
import importlib.metadata
import json
import sys
import typing
from typing import Any

from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig
from reasoning_gym.factory import DATASETS
from sglang.srt.server_args import ServerArgs

PACKAGES = ("sglang", "megatron-core", "reasoning-gym")
JSON_PARSERS = {"loads", "json_list_type", "parse_cuda_graph_config_arg"}
NUMBERS = {"int": "integer", "human_readable_int": "integer", "float": "number"}
IGNORED_BY_SGLANG = {"_HelpAction", "DeprecatedAction"}


def known_arguments() -> dict[str, Any]:
    """Return everything that goes into the file."""
    return {
        "generated": "by crds/generate_arguments.py; do not edit",
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "sglang": sglang_arguments(),
        "transformerConfig": config_fields(TransformerConfig),
        "optimizerConfig": config_fields(OptimizerConfig),
        "reasoningGym": {name: task_settings(config) for name, (_, config) in sorted(DATASETS.items())},
    }


def sglang_arguments() -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return dict(
        sorted(
            (option.removeprefix("--"), sglang_argument(action, option))
            for action in parser._actions
            if type(action).__name__ not in IGNORED_BY_SGLANG
            for option in action.option_strings
            if not (isinstance(action, argparse.BooleanOptionalAction) and option.startswith("--no-"))
        )
    )


def sglang_argument(action: argparse.Action, option: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": sglang_type(action), "default": default_text(action.default)}
    if action.choices:
        entry["choices"] = sorted(str(choice) for choice in action.choices)  # SGLang has sets among them
    if isinstance(action, argparse.BooleanOptionalAction):
        entry["off"] = option.replace("--", "no-", 1)
    if option != action.option_strings[0]:
        entry["aliasOf"] = action.option_strings[0].removeprefix("--")
    return entry


def sglang_type(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "boolean"
    parser = getattr(action.type, "__name__", "str")
    scalar = "json" if parser in JSON_PARSERS else NUMBERS.get(parser, "string")
    return f"list of {scalar}" if action.nargs in ("+", "*") else scalar


def config_fields(config: type) -> dict[str, Any]:
    hints = typing.get_type_hints(config)
    return {
        field.name: field_entry(hints[field.name], field.default)
        for field in sorted(dataclasses.fields(config), key=lambda field: field.name)
        if not field.name.startswith("_")
    }


def field_entry(hint: Any, default: Any) -> dict[str, Any]:
    kind, choices = field_type(hint)
    entry = {"type": kind, "default": default_text(None if default is dataclasses.MISSING else default)}
    return entry | ({"choices": choices} if choices else {})


def field_type(hint: Any) -> tuple[str, list[str]]:
    """Return what a manifest writes for the type: `object` stands for what YAML cannot express."""
    plain = {bool: "boolean", int: "integer", float: "number", str: "string"}
    if hint in plain:
        return plain[hint], []
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "string", [member.name for member in hint]
    origin, arguments = typing.get_origin(hint), [part for part in typing.get_args(hint) if part is not type(None)]
    if origin is typing.Literal:
        return "string", [str(choice) for choice in arguments]
    if origin is typing.Union and len(arguments) == 1:
        return field_type(arguments[0])
    if origin in (list, tuple) and arguments:
        return f"list of {field_type(arguments[0])[0]}", []
    if origin is typing.Union:
        kinds = [field_type(part)[0] for part in arguments]
        return next((f"{kind} or list of {kind}" for kind in kinds if f"list of {kind}" in kinds), "object"), []
    return "object", []


def task_settings(config: type) -> list[str]:
    return sorted({field.name for field in dataclasses.fields(config)} - {"seed", "size"})


def default_text(value: Any) -> str:
    if callable(value):
        return str(getattr(value, "__name__", "function"))
    return value.name if isinstance(value, enum.Enum) else str(value)


def layout(content: dict[str, Any]) -> str:
    """Return JSON with an argument a line, so that a change of a pin reads well as a difference."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {layout_of(value)}" for key, value in content.items()) + "\n}\n"


def layout_of(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()) + "\n}"


if __name__ == "__main__":
    sys.stdout.write(layout(known_arguments()))
