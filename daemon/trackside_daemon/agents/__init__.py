"""Answer agents over the Model Context Protocol: short answers, whose texts from runs are marked as data.

In: JSON-RPC messages, and a history to read. Out: answers of at most 8 kB; waits and captures go to the daemon.
"""
