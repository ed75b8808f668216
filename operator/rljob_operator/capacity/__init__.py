"""Whether a job can ever get its pods, and whether it can get them now. Pure.

job ─► demand ─┐
quotas, limits ┼─► quotas  ─┐
nodes ─────────┴─► packing ─┴─► verdict: Never, Later, Fits
"""
