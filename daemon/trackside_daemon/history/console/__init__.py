"""Output of the commands of ``trackside run --console``: the last megabytes of each, as files beside the history.

In: bytes of a command's terminal, by the id of its launch. Out: files for this user alone, and their lines as plain text.
"""
