"""Samples that an agent makes: a user's function that speaks to the gateway as to OpenAI.

prompt ─► generator ─► gateway opens a session ─► workers run the function ─► gateway closes it ─► trajectory ─► Sample
"""
