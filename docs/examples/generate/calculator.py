"""A calculator: inserts the result after `<<19 * 21>>`. The model is not trained on the result.

    spec.rollout.generate: calculator:generate

Its directory must be on PYTHONPATH where the job runs.
"""

import ast
import operator
import re

from rljob_trainer.conversations.conversation import Conversation

CALL = re.compile(r"<<([^<>]+)$")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.USub: operator.neg}


async def generate(conversation: Conversation) -> None:
    """Let the model continue after each result until it ends its turn."""
    while True:
        answer = await conversation.model(stop=[">>"])
        call = CALL.search(answer.text)
        if answer.finish_reason == "length" or call is None:
            return
        conversation.give(f" {result(call[1])} ")


def result(expression: str) -> str:
    """Return the value of a sum of products, or what is wrong with it."""
    try:
        return str(value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"({error})"


def value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)) if abs(number) < 10**12:
            return number
        case ast.BinOp(left, action, right) if type(action) in OPERATORS:
            return int(OPERATORS[type(action)](value(left), value(right)))
        case ast.UnaryOp(action, operand) if type(action) in OPERATORS:
            return int(OPERATORS[type(action)](value(operand)))
        case _:
            raise ValueError(f"cannot calculate {ast.unparse(node)}")
