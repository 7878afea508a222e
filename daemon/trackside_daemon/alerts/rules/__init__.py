"""Define threshold rules once, for the daemon and for Prometheus.

In: built-in rules and the user's configuration. Out: findings, evaluated once per tick, and PromQL rule files.
"""
