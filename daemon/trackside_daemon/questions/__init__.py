"""Questions to a history: each once, with its parameters, function, path and sentence.

In: the history's file, and what only a running daemon knows. Out: JSON. The HTTP API, its document, the commands and the tools
of agents are loops over the classes of `table`.
"""
