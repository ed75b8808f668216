"""The value that one of the wrong type was meant to be, in the manifest's own fields and in its parts of pods. Pure."""

import json
import re
from typing import Final

LONGEST: Final = 100
"""of a value that is obvious [characters]"""
INTEGER: Final = re.compile(r"-?\d{1,18}(\.0*)?")
NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
BOOLEANS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), "true"),
    **dict.fromkeys(("false", "no", "off", "0"), "false"),
}
"""spellings, YAML 1.1's among them"""


def intended(value: object, kind: str) -> str | None:
    """Return a value as YAML writes it in the type `kind`, if that is obvious.

    `kind` is `integer`, `number`, `boolean`, `string` or `list`; of any other type nothing is obvious.
    """
    if not isinstance(value, int | float | str) or len(text := str(value)) > LONGEST:
        return None
    match kind:
        case "integer" if INTEGER.fullmatch(text):
            return text.partition(".")[0]
        case "number" if NUMBER.fullmatch(text):
            return text
        case "boolean":
            return BOOLEANS.get(text.lower())
        case "string" if isinstance(value, int | float):
            return json.dumps(json.dumps(value))  # true, not True
        case "list" if isinstance(value, int | str):
            return json.dumps([value])
        case _:
            return None
