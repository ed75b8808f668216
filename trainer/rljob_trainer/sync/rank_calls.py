"""What driver and ranks say to each other in a publication."""

from typing import Literal

Backend = Literal["gloo", "nccl"]
"""by which learner and engines exchange tensors"""
