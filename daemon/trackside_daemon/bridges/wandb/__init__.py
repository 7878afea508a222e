"""Read runs that W&B has written, and mirror runs to it.

In: transaction logs (.wandb); samples. Out: the contents of runs; calls of W&B's client.
"""
