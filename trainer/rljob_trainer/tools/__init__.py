"""Tools that a model may call: plain functions, which run in a separate process.

Each file is one tool. The model sees its type hints and docstring, so a user's own has both. Only the
standard library is imported.
"""
