"""Draw ``trackside top``, the dashboard in a terminal.

In: the daemon's API. Out: lines of styled text, made by plain functions; `app` shows them.
"""
