"""Connect training frameworks to a run.

In: the callbacks of Transformers, Lightning, Accelerate, Keras and others. Out: pushes, phases and checkpoint events of a `Run`.
Each framework has one module, the only one that imports it.
"""
