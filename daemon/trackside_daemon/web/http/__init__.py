"""Serve and protect the HTTP port.

In: connections. Out: requests that passed the limits, TLS and authentication.
"""
