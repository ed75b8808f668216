"""The optimizer and its state, and where its memory is while engines use the GPU."""
