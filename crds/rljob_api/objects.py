"""References to object stores and web servers: `s3://BUCKET/KEY`, `gs://BUCKET/KEY`, `https://HOST/PATH`.

What ends in `/` is all below it: a model, or the checkpoints of a run.
"""

import re

STORES = ("s3", "gs")
"""schemes of stores, which can be listed and written to"""
SCHEMES = (*STORES, "https")
_PLACE = "://[^/@?#]+/[^?#]+"
REFERENCE = re.compile(f"({'|'.join(SCHEMES)}){_PLACE}")
PREFIX = re.compile(f"({'|'.join(STORES)}){_PLACE}")
"""a place in a store that can be written to"""


def is_reference(text: str) -> bool:
    """Return whether a manifest's value names something in a store or on a web server."""
    return REFERENCE.fullmatch(text) is not None


def form_of(text: str, end: str) -> str | None:
    """Return the form of the references that a text resembles; None: it begins as none of them."""
    scheme = text.partition("://")[0].lower()
    if scheme in STORES:
        return f"{scheme}://BUCKET/{end}"
    return f"https://HOST/{end}" if scheme in ("http", "https") else None
