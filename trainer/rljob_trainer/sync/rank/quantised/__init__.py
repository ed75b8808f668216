"""Weights as engines get them: in the learner's type, or quantised."""
