"""Objectives: a loss for each response token. Ranks run them; the driver tries the chosen one before the start.

torch is loaded here, and Megatron is not. Objectives of users import this room.
"""
