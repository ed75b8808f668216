"""The output layer: log-probabilities and entropies of the response tokens."""
