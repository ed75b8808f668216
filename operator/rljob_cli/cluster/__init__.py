"""The verbs that look at a cluster. I/O: only `cluster.py` imports `kubernetes`, and only once such a verb runs."""
