"""What a run has reported, read again: by the command line, and by the driver at its end for report.html.

Its only source is events.jsonl, so it works on the files of any run.
"""
