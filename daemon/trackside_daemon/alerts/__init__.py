"""Turn alarms into alerts and notify receivers.

In: alarms of detectors and rules. Out: active alerts with evidence, inhibited and silenced as configured, and
notifications through sinks.
"""
