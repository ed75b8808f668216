"""What can be said of a manifest, or a script of another system, before anything starts. Reads files; no cluster."""
