"""Whole-number arithmetic of the shell, `$((8 * NODES))`, without running anything."""

import ast
import operator
import re
from collections.abc import Callable, Mapping

LARGEST = 2**63
LONGEST = 1_000
"""of an expression [characters]"""
OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


Variables = Callable[[str], str | None]
"""the value of a variable by its name; None: it is not known"""


def value(expression: str, variables: Variables) -> int | None:
    """Return the value of an expression of + - * / % with names of variables; None: it is not of this form."""
    if len(expression) > LONGEST:
        return None
    plain = re.sub(r"\$\{?(\w+)\}?", r"\1", expression).strip()
    try:
        found = _value(ast.parse(plain, mode="eval").body, variables)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
        return None
    return found if found is not None and abs(found) < LARGEST else None


def _value(node: ast.expr, variables: Variables) -> int | None:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            text = variables(name)
            return None if text is None else int(text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _value(operand, variables)
            return None if positive is None else -positive
        case ast.BinOp(left=left, op=operation, right=right):
            first, second = _value(left, variables), _value(right, variables)
            if first is None or second is None or max(abs(first), abs(second)) >= LARGEST:
                return None
            return _combined(operation, first, second)
        case _:
            return None


def _combined(operation: ast.operator, first: int, second: int) -> int | None:
    """Return the result; division rounds towards zero, as in the shell."""
    if type(operation) in OPERATIONS:
        return OPERATIONS[type(operation)](first, second)
    if isinstance(operation, ast.Div | ast.Mod):
        quotient = abs(first) // abs(second) * (1 if first * second >= 0 else -1)
        return first - second * quotient if isinstance(operation, ast.Mod) else quotient
    return None
