"""The attempts of a job's driver: when one begins, ends and is followed by another, and why it failed. Pure."""
