"""Find the checkpoints of a run and audit them, and judge whether a resumed run continues where it was.

In: events, files that ranks opened for writing, configured directories, and the history of an earlier attempt. Out:
`Checkpoint` records, verdicts on resumes as events, findings, and families.
"""
