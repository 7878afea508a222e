"""Send alerts by e-mail, Slack, ntfy and a hundred other services, through the library apprise.

In: groups of alerts. Out: one message per group.
"""
