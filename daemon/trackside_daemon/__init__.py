"""The daemon of trackside, which runs next to a training job, and the ``trackside`` command.

It samples GPUs and the host, receives what the training pushes, keeps all of it in the history, detects trouble, and serves
metrics to Prometheus, an API and two dashboards.
"""

__version__ = "0.2.0"
