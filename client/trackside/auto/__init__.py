"""Monitor trainings whose code does not use trackside: ``trackside run --auto -- python train.py``.

In: imports of PyTorch, frameworks and trackers, and the calls that a training makes to them. Out: pushes of the default run.
"""
