"""The tool `calculator`: arithmetic, and nothing else that Python can do."""

import ast
import operator
from collections.abc import Callable

Number = int | float

MOST = 10**30
"""larger values, and powers that could be, are refused: they take time and memory without end"""
BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}


def calculator(expression: str) -> str:
    """
    Calculate an arithmetic expression.

    Args:
        expression: numbers, parentheses and + - * / // % **, for example 2 * (3 + 4)
    """
    return str(value(ast.parse(expression.strip(), mode="eval").body))


def value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return bounded(number)
        case ast.BinOp(left, ast.Pow(), right):
            return power(value(left), value(right))
        case ast.BinOp(left, action, right) if type(action) in BINARY:
            return bounded(BINARY[type(action)](value(left), value(right)))
        case ast.UnaryOp(action, operand) if type(action) in UNARY:
            return UNARY[type(action)](value(operand))
        case _:
            raise ValueError(f"cannot calculate {ast.unparse(node)}")


def power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > 100:
        raise ValueError(f"the exponent {exponent} is too large")
    found = base**exponent
    if isinstance(found, complex):
        raise TypeError(f"{base} ** {exponent} is not a real number")
    return bounded(found)


def bounded(number: Number) -> Number:
    if abs(number) > MOST:
        raise ValueError("the value is too large")
    return number
