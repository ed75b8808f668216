"""Samples that are made in several steps: by a function of the user's, or by a model that calls tools.

prompt ─► Conversation ◄─► function ─► Sample
              │   ▲
      tokens  ▼   │  answers, with their log-probabilities
             router
"""
