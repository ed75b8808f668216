"""Tools that a model may call: plain functions, which run in a process of their own.

Each file is one tool. Type hints and docstring are what the model is told of it, so a user's own has both. Only the
standard library is imported.
"""
