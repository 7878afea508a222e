"""The process that alone talks to the clients over ZeroMQ.

In: listening sockets, messages of clients, answers of the daemon. Out: messages with their connections, over a Unix socket pair.
Has limits of its own, so that what strangers send can exhaust or abort only this process; the daemon then starts another.
"""
