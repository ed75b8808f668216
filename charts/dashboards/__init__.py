"""The Grafana dashboards of the chart. `make generate` writes their JSON."""
