"""Answer ``/api/v1``, one file per resource.

In: authenticated requests. Out: JSON, CSV and server-sent events.
"""
