"""The webhook's command line."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_operator.capacity.packing import Node
from rljob_operator.settings import add_autoscaler, add_defaults, defaults_of
from rljob_operator.world.world import Defaults


@dataclass(frozen=True, slots=True)
class Settings:
    """How this webhook runs."""

    kubeconfig: str | None
    host: str
    port: int
    pages: int
    names: tuple[str, ...]
    secret: tuple[str, str]
    path_secret: tuple[str, str]
    configuration: str
    directory: Path | None
    namespaces: tuple[str, ...]
    coming: tuple[Node, ...] | None
    log_level: str
    defaults: Defaults


def settings(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings that a command line asks for; ends the process if it is wrong."""
    given = _parser(environ).parse_args(arguments)
    return Settings(
        kubeconfig=given.kubeconfig,
        host=given.host,
        port=given.port,
        pages=given.pages_port,
        names=tuple(given.name),
        secret=(given.secret_namespace, given.secret),
        path_secret=(given.secret_namespace, given.path_secret),
        configuration=given.configuration,
        directory=given.certificate_directory,
        namespaces=tuple(given.namespace),
        coming=given.autoscaler,
        log_level=given.log_level,
        defaults=defaults_of(given),
    )


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rljob_operator.webhook", description=__doc__)
    add = parser.add_argument
    add("--kubeconfig", default=environ.get("KUBECONFIG"), help="file; absent: the pod's ServiceAccount")
    add("--host", default="0.0.0.0", help="address to listen on")
    add("--port", type=int, default=8443, help="of the webhook, HTTPS")
    add("--pages-port", type=int, default=8080, help="of /healthz and /metrics, HTTP")
    add("--name", action="append", default=[], help="host of the certificate; may be given again")
    add("--secret-namespace", default="default", help="of both Secrets")
    add("--secret", default="rljob-webhook", help="that keeps the certificate and its authority")
    add("--path-secret", default="rljob-webhook-path", help="that keeps the path which the API server calls")
    add("--configuration", default="rljob-webhook", help="ValidatingWebhookConfiguration of this webhook")
    add("--certificate-directory", type=Path, help="with tls.crt and tls.key that another program renews")
    add("--namespace", action="append", default=[], help="with jobs; may be given again; absent: all")
    add_autoscaler(parser)
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    add_defaults(parser)
    return parser
