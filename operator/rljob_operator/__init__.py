"""The Kubernetes operator: keeps what an RLJob asks for and what the cluster does the same.

watches ─► cache ─► reconcile ─► plan (pure) ─► execution ─► cluster (all Kubernetes I/O), drivers (all HTTP)

    decide, pure     world  job  attempts  children  status  capacity  queueing  plan  fallback
    keep in memory   cache
    do I/O           cluster  drivers  watches  execution  runtime  webhook
    loops            reconcile  reservations  sweeper
    processes        __main__ (built by process)  webhook  diagnoses  installation
"""
