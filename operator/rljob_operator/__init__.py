"""The Kubernetes operator: keeps what an RLJob asks for and what the cluster does the same.

watches ─► cache, queue ─► reconcile ─► plan (pure) ─► cluster (all Kubernetes I/O), drivers (all HTTP)
"""
