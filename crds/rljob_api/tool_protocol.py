"""The protocol between a driver and the pods in which its tools run: HTTP, JSON bodies, a bearer token.

    GET  /healthz    whether the server is up; needs no token
    POST /v1/load    {"path": "module:function"} -> {} or {"refused": why the function cannot be used}
    POST /v1/call    {"path", "arguments", "timeoutSeconds", "memoryMib"} -> {"text": result, or "Error: ..."}

A pod runs one call at a time; it answers 409 while it is busy. The token opens nothing else: it is derived from that of
the control protocol, which cannot be found from it. A pod does not even have this one, only its digest.
"""

import hashlib
import hmac

HEALTH = "/healthz"
LOAD = "/v1/load"
CALL = "/v1/call"

PORT = 8645
"""of the server in each pod"""
PODS_VARIABLE = "RLJOB_TOOL_PODS"
"""environment variable of a driver with pods for its tools: PODS.SERVICE, where they are called PODS-0, PODS-1 ..."""
DIGEST_VARIABLE = "RLJOB_TOOLS_TOKEN_DIGEST"
"""environment variable of a pod of tools: digest of the token that it accepts"""
MODULE = "rljob_trainer.conversations.pod_server"
"""what a pod of tools runs"""


def tools_token(token: str) -> str:
    """Return the token with which a driver calls tools, derived from the token of the control protocol."""
    return hmac.new(token.encode(), b"tools", hashlib.sha256).hexdigest()


def digest(tools_token: str) -> str:
    """Return what the pods of tools get, to recognise the token."""
    return hashlib.sha256(tools_token.encode()).hexdigest()


def host(pool: str, index: int) -> str:
    """Return the name of a pod in its namespace's DNS; `pool` is PODS.SERVICE."""
    pods, _, service = pool.partition(".")
    return f"{pods}-{index}.{service}"
