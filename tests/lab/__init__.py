"""Tests with real parts: Prometheus, Alertmanager, Grafana's components, systemd in a container."""
