"""Plugins of engines, imported as engines import them."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rljob_trainer.engines.command import ANY_SITE, CPU_SITE


@contextmanager
def imported(name: str) -> Iterator[Any]:
    """Import a plugin; at the end forget it, and the plugins that it imported: the same interpreter tests others."""
    known = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for site in (ANY_SITE, CPU_SITE):
            patch.syspath_prepend(site)
        yield importlib.import_module(name)
    for new in sys.modules.keys() - known:
        if new.startswith("rljob_sglang_"):
            del sys.modules[new]
