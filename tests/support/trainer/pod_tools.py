"""Tools of a user, in the image of a pod of tools."""

import os


async def later(text: str) -> str:
    return text.upper()


def loud() -> str:
    return "x" * 2**21


def greedy() -> str:
    return str(len(bytes(2**30)))


def rude() -> str:
    os._exit(3)
