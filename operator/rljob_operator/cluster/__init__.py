"""All I/O with the API server of Kubernetes: only `cluster.py` imports `kubernetes`."""
