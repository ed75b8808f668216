"""SGLang plugin: the server demands the key in RLJOB_ENGINE_KEY, see `rljob_trainer.engines.key`.

SGLang finds it by the entry point in `rljob_sglang_key-1.dist-info`. `--api-key` is in the command line, which each
user of the machine may read, and a `--config` file is in the log, with all other arguments. SGLang 0.5.17 asks whether
requests need to be checked just before it serves, after it has logged its arguments: it learns the key there.
"""

import os
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

ASKS = "sglang.srt.utils.auth.app_has_admin_force_endpoints"


def register() -> None:
    """Called by SGLang in each of its processes; only the first one has the key, and those that it starts do not."""
    if key := os.environ.pop("RLJOB_ENGINE_KEY", ""):
        HookRegistry.register(ASKS, demanding(key), HookType.REPLACE)


def demanding(key: str) -> Callable[[Any], bool]:
    """Return what stands in for `app_has_admin_force_endpoints`."""

    def demand(app: Any) -> bool:
        app.server_args.override("rljob", api_key=key)  # SGLang reads it next, and for the request that warms it
        return True

    return demand
