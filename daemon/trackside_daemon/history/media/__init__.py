"""Images, texts and tables of runs: files beside the history, with an index for each run.

In: `MediaItem` of accepted batches, which are hostile until checked. Out: checked files of three kinds, within quotas.
"""
