"""A valid job with all that is derived from its manifest: admission, defaults, storage, the form of its pods. Pure."""
