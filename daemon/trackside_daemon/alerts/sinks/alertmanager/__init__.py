"""Alertmanager, without Prometheus."""
