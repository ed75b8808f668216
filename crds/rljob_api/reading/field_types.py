"""What a field takes, in words: `whole number, at least 1`. For problems and for the reference; read off the models."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from rljob_api.errors import shown
from rljob_api.sections import INT32

Schema = Mapping[str, Any]

WORDS = {
    "array": "list",
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "object": "mapping",
    "string": "text",
}
UNBOUNDED = INT32
"""the largest int32: a bound of the format, not of the field"""


def adapter(field: FieldInfo) -> TypeAdapter[Any]:
    """Return the validator of one field alone."""
    bounded: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return TypeAdapter(bounded)


def kind(field: FieldInfo) -> str:
    """Return what a field takes, without its default."""
    schema = adapter(field).json_schema()
    return words(schema, schema.get("$defs", {}))


def words(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    if "$ref" in schema:
        return words(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return " or ".join(words(option, definitions) for option in schema["anyOf"] if option.get("type") != "null")
    if "properties" in schema:
        return "section"
    if options := choices(schema):
        return " | ".join(options)
    return ", ".join([WORDS[schema["type"]], *limits(schema, definitions)])


def choices(schema: Schema) -> list[str]:
    """Return the only values that a schema allows, if it lists them."""
    return [str(option) for option in schema.get("enum", [schema["const"]] if "const" in schema else [])]


def limits(schema: Schema, definitions: Mapping[str, Schema]) -> list[str]:
    found = []
    if schema.get("items"):
        found.append(f"each a {words(schema['items'], definitions)}")
    for key, word in (
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
    ):
        if key in schema and schema[key] != UNBOUNDED:
            found.append(f"{word} {number(schema[key])}")
    return found


def number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def default(field: FieldInfo) -> str | None:
    """Return the default as a manifest would write it; None for a required field, empty when absent is the default."""
    if field.is_required():
        return None
    value = field.get_default(call_default_factory=True)
    return "" if value is None else shown(adapter(field).dump_python(value, by_alias=True))
