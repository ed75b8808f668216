"""An image with this machine's Python and rljob's code, for pods that need neither torch nor Ray.

It has bytecode, as images of the trainer have: pods cannot write it, and each start of Python would compile again.
"""

import importlib.util
import py_compile
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from local_cluster.images import write_archive

IMAGE = "rljob.local/python:1"
PACKAGES = ("rljob_api", "rljob_trainer", "pydantic", "pydantic_core", "annotated_types", "typing_inspection", "yaml")
MODULES = ("typing_extensions",)
CODE = "/code"
LEFT_OUT = {"__pycache__", "test", "tests", "site-packages", "idlelib", "ensurepip", "tkinter", "lib2to3"}


def python_archive(directory: Path) -> Path:
    """Write the image's archive into this directory; return its path."""
    files = {str(path): path for path in (*_interpreter(), *_libraries())}
    for name in (*PACKAGES, *MODULES):
        files |= {f"{CODE}/{place}": path for place, path in _package(name)}
    files |= _bytecode(files, directory / "bytecode")
    links = {"/usr/bin/python": str(_program())}
    return write_archive(directory / "python.tar", IMAGE, files, ["/usr/bin/python"], links)


def _bytecode(files: Mapping[str, Path], directory: Path) -> dict[str, Path]:
    """Compile modules into this directory; return the files by path in the image."""
    directory.mkdir()
    found = {}
    for number, (place, path) in enumerate(files.items()):
        if path.suffix == ".py":
            compiled = found[importlib.util.cache_from_source(place)] = directory / f"{number}.pyc"
            # The image's sources have other times than these.
            unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(path), str(compiled), place, doraise=True, invalidation_mode=unchecked)
    return found


def _program() -> Path:
    return Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"


def _standard() -> Path:
    return Path(sys.base_prefix) / "lib" / f"python3.{sys.version_info.minor}"


def _interpreter() -> Iterator[Path]:
    yield _program()
    yield from (path for path in _tree(_standard()) if path.suffix in (".py", ".so"))


def _libraries() -> Iterator[Path]:
    """Yield what the interpreter and its modules are linked to, the loader included."""
    extensions = (path for name in PACKAGES for _, path in _package(name) if path.suffix == ".so")
    programs = [_program(), *_standard().glob("lib-dynload/*.so"), *extensions]
    said = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    yield from {Path(word) for word in said.split() if word.startswith("/") and not word.endswith(":")}


def _package(name: str) -> Iterator[tuple[Path, Path]]:
    found = importlib.util.find_spec(name)
    assert found is not None
    if not found.submodule_search_locations:
        assert found.origin is not None
        yield Path(f"{name}.py"), Path(found.origin)
        return
    (root,) = map(Path, found.submodule_search_locations)
    for path in _tree(root):
        yield Path(name) / path.relative_to(root), path


def _tree(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        if path.is_file() and not LEFT_OUT.intersection(path.relative_to(root).parts):
            yield path
