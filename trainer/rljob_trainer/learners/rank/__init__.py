"""What runs in a rank, a process in a Ray actor. torch and Megatron are loaded here; Ray, engines and HTTP are not.

`rank.py` is the policy and its training, and the rooms are its parts. `conversion.py` is a lone rank in the process of
`rljob convert`. The driver calls ranks through `learners/group.py` and imports nothing from here.
"""
