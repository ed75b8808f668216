"""How arguments of verl are asked, and what its programs say alike: files, betas, epochs."""

from collections.abc import Sequence

from rljob_importing.draft import Arguments, Draft, origin
from rljob_importing.mapping import number_or_text
from rljob_importing.settings import items

DEFAULT = "verl's default"


def on(arguments: Arguments, name: str) -> bool:
    return (arguments.text(name) or "").lower() in ("true", "1")


def shown(arguments: Arguments, name: str) -> str:
    """Return where a value comes from: the argument, or verl's default."""
    return origin(arguments[name]) if name in arguments else DEFAULT


def listed(arguments: Arguments, name: str) -> Sequence[str]:
    """Return the items of a list; none where it is not given."""
    return items(arguments[name]) if name in arguments else ()


def kind_of(path: str) -> str:
    """Return the field of a file of rows."""
    return "jsonl" if path.endswith((".jsonl", ".json")) else "parquet"


def put_source(made: Draft, arguments: Arguments, name: str, path: str, file: str) -> None:
    """Set a source, `data.train`, to the file that an argument `data.train_files` names first, with its limit."""
    made.put(f"{path}.{kind_of(file)}", file, origin(arguments[name]))
    limit = f"{name.removesuffix('_files')}_max_samples"
    if (arguments.whole(limit) or 0) > 0:
        made.put(f"{path}.limit", arguments.whole(limit), origin(arguments[limit]))


def put_betas(made: Draft, arguments: Arguments, name: str) -> None:
    for path, value in zip(("beta1", "beta2"), listed(arguments, name), strict=False):
        made.put(f"training.optimizer.{path}", number_or_text(value), origin(arguments[name]))
