"""Run a small real training for ``trackside demo``.

In: options of the command. Out: a daemon, a character model that trains on one core, and what goes wrong on request.
"""
