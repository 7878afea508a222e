"""The HTTP server: /metrics, /-/healthy, /-/ready, the API and the landing page."""
