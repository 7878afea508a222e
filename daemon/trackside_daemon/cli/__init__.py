"""Provide the ``trackside`` command.

In: command lines. Out: text on the terminal and exit statuses 0 (done), 1 (failed), 2 (wrong usage).
"""
