"""The objects that a job should have, as complete manifests: RayCluster, Service, ConfigMap, pods for tools. Pure."""
