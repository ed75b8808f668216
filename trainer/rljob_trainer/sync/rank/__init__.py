"""The ranks' side of a publication, in the learner's Ray actors: exports, digests, files, collectives.

torch is loaded here. The driver imports nothing from here, see `sync/rank_makers.py`.
"""
