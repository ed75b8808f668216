"""Asks a process over HTTP whether it is well."""

import http.client
import ssl
from urllib.parse import urlsplit

from local_cluster.certificates import Certificate


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Return whether GET is answered with 200 within two seconds."""
    parts = urlsplit(url)
    if parts.hostname is None:
        raise ValueError(f"{url}: no host")
    connection = (
        http.client.HTTPConnection(parts.hostname, parts.port, timeout=2)
        if context is None
        else http.client.HTTPSConnection(parts.hostname, parts.port, timeout=2, context=context)
    )
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def trusting(authority: Certificate, client: Certificate) -> ssl.SSLContext:
    """Return what a client of the API server needs to connect."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(client.certificate, client.key)
    return context


def unverified() -> ssl.SSLContext:
    """Return what connects to a process that signs its own certificate and does not publish it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
