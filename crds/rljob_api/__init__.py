"""What the operator, the trainer and the command line agree on.

Pure: no I/O, no clock, no torch, no kubernetes.
"""
