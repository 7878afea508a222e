"""The commands that ask the history, through a daemon or from its file."""
