"""A job's ConfigMap: the manifest that its driver reads. Pure.

The operator only compares it with the one that it wants, so a digest is all that it keeps: a user who may write
ConfigMaps can give a thousand of them a job's label, with 1 MiB each.
"""

import hashlib

from rljob_operator.identity import Manifest

MANIFEST_KEY = "manifest.yaml"
DIGESTS = "digests"
"""instead of `data`; an API server has no such field"""


def digested(raw: Manifest) -> Manifest:
    """Return a ConfigMap with the digest of its manifest instead of its data."""
    if DIGESTS in raw:
        return raw
    text = (raw.get("data") or {}).get(MANIFEST_KEY)
    digests = {MANIFEST_KEY: hashlib.sha256(str(text).encode(errors="replace")).hexdigest()} if text is not None else {}
    return {**{key: value for key, value in raw.items() if key not in ("data", "binaryData")}, DIGESTS: digests}
