"""Weights from the learner to the engines, as the driver sees it, without torch.

    driver: publisher ─► transport ─► learner_link ─► learners.group ── Ray ──► rank/, in the learner's actors

`rank_makers.py` names what the actors make; `layout.py` is arithmetic for both sides.
"""
