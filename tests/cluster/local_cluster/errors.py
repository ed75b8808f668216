"""The one exception of this package."""


class ClusterError(Exception):
    """A cluster for tests cannot be built, started or removed; the text says what was wanted and what was seen."""
