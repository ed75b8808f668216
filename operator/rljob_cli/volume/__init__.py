"""The run directories of a volume: lists them, and deletes old ones. Reads and deletes files; no cluster."""
