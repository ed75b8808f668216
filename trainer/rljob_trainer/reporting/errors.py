class TrackingError(ValueError):
    """What the manifest says about tracking cannot be done; the text says which field, and why."""
