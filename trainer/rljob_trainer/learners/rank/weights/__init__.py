"""The policy's weights: from a Hugging Face checkpoint, back to one, and the copy that is the reference."""
