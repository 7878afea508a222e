"""Send alerts to any receiver of Alertmanager's webhook.

In: groups of alerts. Out: HTTP requests with Alertmanager's JSON, version 4.
"""
