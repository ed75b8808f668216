"""`rljob run`: supervises a run on this machine, as the operator does in a cluster. Processes and files; no cluster."""
