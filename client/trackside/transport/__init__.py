"""Deliver pushed rows to the daemon, exactly once.

In: rows from `Run`'s queue, as columns. Out: messages on a ZeroMQ socket, and spool files while no daemon answers.
One background thread per process does all of it; the training's own threads never wait here.
"""
