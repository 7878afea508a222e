"""Deliver notifications to sinks.

In: active alerts. Out: messages, sent by one thread per sink, and retried until the receiver accepts them.
"""
