"""Send alerts to an Alertmanager without a Prometheus in between.

In: active alerts. Out: requests to its API v2, repeated while an alert fires and for some minutes after it ends.
"""
