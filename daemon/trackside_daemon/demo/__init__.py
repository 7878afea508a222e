"""Run a small real training for ``trackside demo``.

In: options of the command. Out: a daemon, and a character model that trains on one core and goes wrong on request.
"""
