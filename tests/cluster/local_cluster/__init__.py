"""A real Kubernetes on one machine, for tests, without a container registry: see tests/cluster/README.md."""
