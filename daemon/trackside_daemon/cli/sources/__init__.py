"""Find the data a command is about.

In: addresses, credentials and storage paths. Out: runs and alerts, from a running daemon's API or from the history file.
"""
