"""Documents about runs, alerts and benchmarks: what they consist of, and writers of text, Markdown, HTML and CSV.

In: what the daemon's API answers, as JSON. Out: text; the writers know nothing of the contents, and escape what runs wrote.
"""
