"""What runs in the Ray actor beside an engine: it starts the server, and keeps its machine's copy of the weights.

`rljob rollout` runs it in its own process. No torch.
"""
