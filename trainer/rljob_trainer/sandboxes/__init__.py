"""Processes for code that may be hostile: on this machine in namespaces, or in pods that the operator makes.

driver ── client ──► conversations/pod_server, the first process there ── call_process ──► pod_call ──► the function
"""
