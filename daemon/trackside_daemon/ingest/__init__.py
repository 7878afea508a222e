"""Receive what training processes push.

In: ZeroMQ messages. Out: checked batches for the pipeline, and acknowledgements once the history has committed.
The only package that imports zmq.
"""
