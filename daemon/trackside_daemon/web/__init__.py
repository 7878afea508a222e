"""The HTTP server: /metrics, /-/healthy, /-/ready, the API and the dashboard."""
