"""What a run has left in its directory: report, numbers of steps, curves, checkpoints. Reads files; no cluster."""
