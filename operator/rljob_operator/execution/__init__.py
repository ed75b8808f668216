"""Writes to the cluster and to drivers: the actions of a plan, the status of a job, the Secret of its token. I/O."""
