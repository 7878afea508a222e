"""Deliver notifications to sinks.

In: active alerts. Out: messages, one thread per sink, retried until the receiver accepts them.
"""
