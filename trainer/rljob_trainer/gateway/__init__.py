"""The model as an agent sees it: a service that speaks OpenAI's and Anthropic's API and keeps every token as sampled.

agent ─► server ─► requests ─► chat ─► tree: which turns are known? ─► rendering: tokens of the new messages alone
                                │                                          │
                                ◄── answers ◄── parsing ◄── router ◄────────

It runs in separate processes, `process.py`; the driver opens and closes sessions in them through `client.py`.
"""
