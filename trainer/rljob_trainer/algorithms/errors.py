class AlgorithmError(ValueError):
    """The algorithm that the manifest names cannot be had; the text says why."""
