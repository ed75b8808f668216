"""The `rljob` command: `main.py` has the verbs, each room the work of one kind of them.

manifest ─► run ─► records ─► jobs (pure) ─► cluster ─► doctor      each may import those before it
trials                                                              a reward or a rollout on a few rows
terminal                                                            what all of them print with
"""
