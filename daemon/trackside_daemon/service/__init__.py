"""Assemble the daemon and run it from start to stop.

In: a checked `Config`. Out: a running daemon, its exit status, its log and its messages to systemd.
The only package that connects the parts with each other.
"""
