"""The key that engines and router of a run demand. Each run makes its own, and gives it to them by environment."""

import secrets

KEY_VARIABLE = "RLJOB_ENGINE_KEY"
"""known to `inside/any/rljob_sglang_key.py` too, which runs where this package is not imported"""


def new_key() -> str:
    """Return a new random key."""
    return secrets.token_hex()


def with_key(key: str) -> dict[str, str]:
    """Return the headers of a request to a server that demands this key; none where it is empty."""
    return {"Authorization": f"Bearer {key}"} if key else {}
