"""What the reporting package may not bring into the driver's process."""

import os
import subprocess
import sys

MODULES = ("report", "reading.html", "tensorboard", "weights_and_biases", "prometheus", "events", "phases")
FORBIDDEN = {"torch", "tensorflow", "ray", "megatron", "sglang"}


def test_reporting_imports_neither_torch_nor_anything_that_needs_it() -> None:
    imports = "; ".join(f"import rljob_trainer.reporting.{module}" for module in MODULES)
    check = f"import sys; {imports}; print(*({FORBIDDEN!r} & sys.modules.keys()))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", check], check=True, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == []
