"""Mirror the history to servers that accept OpenTelemetry's metrics over HTTP.

In: samples of runs, GPUs and host. Out: OTLP requests, whose series have the names and labels of /metrics.
"""
