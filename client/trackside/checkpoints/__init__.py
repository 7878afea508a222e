"""Save and load the checkpoints of a training, such that an intact one exists at any time.

In: models, optimizers and other state, with their step. Out: folders that are complete or absent, and events of the run.
"""
