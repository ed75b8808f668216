"""Failures by name: how each is recognised in a log, what causes it, and what helps.

`areas/*.yaml` is the catalogue, `catalogue.py` reads it, `scan.py` finds its signatures in the bytes of a log, and
`diagnosis.py` ranks what was found. Nothing here opens a file of a user.
"""
