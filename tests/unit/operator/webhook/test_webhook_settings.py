"""The webhook's command line: what it does without options, and what each option changes."""

from dataclasses import fields
from pathlib import Path

import pytest

from rljob_operator.webhook.settings import Settings, settings

DEFAULT = settings([], {})


def changed(*arguments: str) -> dict[str, object]:
    """Return the settings that differ from the defaults."""
    found = settings(arguments, {})
    names = [field.name for field in fields(Settings) if getattr(found, field.name) != getattr(DEFAULT, field.name)]
    return {name: getattr(found, name) for name in names}


def test_without_options_it_listens_on_all_addresses_and_judges_jobs_of_all_namespaces() -> None:
    assert (DEFAULT.host, DEFAULT.port, DEFAULT.pages) == ("0.0.0.0", 8443, 8080)
    assert (DEFAULT.secret, DEFAULT.configuration) == (("default", "rljob-webhook"), "rljob-webhook")
    assert (DEFAULT.names, DEFAULT.namespaces, DEFAULT.directory) == ((), (), None)
    assert (DEFAULT.kubeconfig, DEFAULT.log_level) == (None, "INFO")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--host", "127.0.0.1"], {"host": "127.0.0.1"}),
        (["--port", "1"], {"port": 1}),
        (["--pages-port", "2"], {"pages": 2}),
        (["--name", "a", "--name", "b"], {"names": ("a", "b")}),
        (["--namespace", "ml", "--namespace", "x"], {"namespaces": ("ml", "x")}),
        (
            ["--secret-namespace", "ops", "--secret", "s"],
            {"secret": ("ops", "s"), "path_secret": ("ops", "rljob-webhook-path")},
        ),
        (["--path-secret", "p"], {"path_secret": ("default", "p")}),
        (["--configuration", "c"], {"configuration": "c"}),
        (["--certificate-directory", "/c"], {"directory": Path("/c")}),
        (["--kubeconfig", "/k"], {"kubeconfig": "/k"}),
        (["--log-level", "ERROR"], {"log_level": "ERROR"}),
    ],
)
def test_an_option_changes_one_setting(arguments: list[str], expected: dict[str, object]) -> None:
    assert changed(*arguments) == expected


def test_the_environment_names_the_kubeconfig_unless_an_option_does() -> None:
    environ = {"KUBECONFIG": "/env"}
    assert settings([], environ).kubeconfig == "/env"
    assert settings(["--kubeconfig", "/k"], environ).kubeconfig == "/k"
