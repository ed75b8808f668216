"""Files and functions stay short enough to be read at once."""

import ast
import gc
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("crds", "operator", "trainer", "charts", "benchmarks", "tests")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MOST_LINES = 450
MOST_LINES_OF_A_FUNCTION = 60
CATALOGUES = {"crds/rljob_api/sections.py"}
"""lists of fields that are looked up, not read from the top"""


def functions(source: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    gc.disable()  # a collection meanwhile can make CPython 3.11 raise SystemError: AST constructor recursion depth
    try:
        tree = ast.parse(source)
    finally:
        gc.enable()
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    source = path.read_text()
    lengths = [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions(source)]

    assert [name for name, lines in lengths if lines > MOST_LINES_OF_A_FUNCTION] == []
    assert len(source.splitlines()) <= MOST_LINES or str(path.relative_to(ROOT)) in CATALOGUES
