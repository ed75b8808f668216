import gc

import pytest


@pytest.fixture(autouse=True)
def no_garbage_of_other_tests(request: pytest.FixtureRequest) -> None:
    """Hypothesis reads the source of a state machine, and CPython 3.11.7 fails to parse it when the garbage collector
    runs a finalizer meanwhile that formats a traceback (python/cpython#106905; can go with 3.11.8).
    """
    if request.module.__name__.endswith("_machine"):
        gc.collect()
