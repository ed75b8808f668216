"""From log-probabilities to a loss and its metrics. The objectives are in `learners/objectives/`."""
