"""How arguments of verl are asked: switches, and where a value comes from."""

from rljob_importing.draft import Arguments, origin

DEFAULT = "verl's default"


def on(arguments: Arguments, name: str) -> bool:
    return (arguments.text(name) or "").lower() in ("true", "1")


def shown(arguments: Arguments, name: str) -> str:
    """Return where a value comes from: the argument, or verl's default."""
    return origin(arguments[name]) if name in arguments else DEFAULT
