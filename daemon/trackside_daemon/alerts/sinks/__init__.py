"""Send alert messages, one folder per kind of receiver.

In: messages of alerts. Out: requests to Alertmanager, webhooks and apprise services, and lines of the log.
Each sink owns its settings.
"""
