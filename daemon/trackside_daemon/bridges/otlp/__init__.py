"""Mirror the history to servers that accept OpenTelemetry's metrics over HTTP, and receive those of other programs.

In: samples of runs, GPUs and host; OTLP requests. Out: OTLP requests, whose series have the names and labels of /metrics; samples
of other programs' families.
"""
