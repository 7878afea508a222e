"""Turn findings into alerts, and notify receivers.

In: findings of detectors and rules. Out: active alerts with evidence, inhibited and silenced as configured, and
notifications through sinks.
"""
