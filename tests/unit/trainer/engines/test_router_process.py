"""The router's own launcher: what it does not import, and that it reads the command line that we write."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest

from rljob_api.sections import RouterPolicy
from rljob_trainer.engines import router_process
from rljob_trainer.engines.key import KEY_VARIABLE
from rljob_trainer.engines.router import RouterSettings, router_argv


def test_it_starts_without_sglang():
    code = (
        "import sys, rljob_trainer.engines.router_process; sys.exit('sglang' in sys.modules or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sessions_stay_at_an_engine_by_the_routers_own_policy():
    settings = RouterSettings(RouterPolicy.CACHE_AWARE, 30.0, 1.0, 5.0, keeps_sessions=True)
    argv = router_argv(settings, "127.0.0.1", 8000, 9000)
    flags = dict(pairwise(argv))
    assert (flags["--policy"], flags["--assignment-mode"]) == ("manual", "min_group")


@pytest.mark.parametrize("key", ["a key", ""])
def test_our_command_line_and_our_key_reach_the_router(monkeypatch: pytest.MonkeyPatch, key: str):
    made = []

    class Router:
        @classmethod
        def from_args(cls, settings):
            made.append(settings)
            return cls()

        def start(self):
            made.append("started")

    monkeypatch.setattr(router_process, "Router", Router)
    python, flag, module, *arguments = router_argv(
        RouterSettings(RouterPolicy.ROUND_ROBIN, 30.0, 1.0, 5.0), "127.0.0.1", 8000, 9000
    )
    assert (python, flag, module) == (sys.executable, "-m", router_process.__name__)
    assert "key" not in " ".join(arguments)
    monkeypatch.setenv(KEY_VARIABLE, key)
    router_process.main(arguments)
    assert KEY_VARIABLE not in os.environ
    settings, started = made
    assert (settings.host, settings.port, settings.prometheus_port, settings.policy) == (
        "127.0.0.1",
        8000,
        9000,
        "round_robin",
    )
    assert settings.disable_circuit_breaker
    assert settings.api_key == (key or None)
    assert started == "started"
