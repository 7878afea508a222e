"""Send HTTP requests to servers that the user has configured.

In: a URL with its secrets, a body. Out: the body of the answer, or an error without secrets, in a bounded time.
"""
