"""The learner as the driver sees it, without torch: a handle on all ranks, and the values that cross to them.

    driver: group ── Ray ──► rank_host, in each actor ──► rank/

`rank/` runs in the ranks, `objectives/` on both sides.
"""
