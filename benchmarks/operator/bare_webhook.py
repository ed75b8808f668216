"""A validating webhook by kopf alone, with a handler that looks at nothing: the other side of the part `admission`.

`python bare_webhook.py KUBECONFIG PORT CERTIFICATE KEY`
"""

import asyncio
import os
import sys
from typing import Any

import kopf
import uvloop


def registry(kubeconfig: str) -> kopf.OperatorRegistry:
    """Return the one handler."""
    handlers = kopf.OperatorRegistry()

    def login(**given: Any) -> kopf.ConnectionInfo | None:
        os.environ["KUBECONFIG"] = kubeconfig  # where kopf looks
        return kopf.login_with_kubeconfig(**given)

    async def validate(**_: Any) -> None:
        return None

    kopf.on.login(registry=handlers)(login)
    kopf.on.validate("rljob.dev", "v1alpha1", "rljobs", id="validate", registry=handlers)(validate)
    return handlers


async def main(kubeconfig: str, port: int, certificate: str, key: str) -> None:
    """Serve until the process is ended."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.admission.server = kopf.WebhookServer(
        addr="127.0.0.1", port=port, host="127.0.0.1", certfile=certificate, pkeyfile=key
    )
    await kopf.operator(registry=registry(kubeconfig), settings=settings, standalone=True, clusterwide=True)


if __name__ == "__main__":
    _, kubeconfig_given, port_given, certificate_given, key_given = sys.argv
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(kubeconfig_given, int(port_given), certificate_given, key_given))
