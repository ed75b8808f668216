"""The arguments that the API knows are those of the installed SGLang, Megatron-core and reasoning-gym."""

import subprocess
import sys
from pathlib import Path

CRDS = Path(__file__).parents[3] / "crds"


def test_the_known_arguments_are_those_of_the_installed_packages():
    generated = subprocess.run(
        [sys.executable, CRDS / "generate_arguments.py"], capture_output=True, text=True, timeout=250, check=True
    ).stdout

    assert generated == (CRDS / "rljob_api" / "rules" / "arguments.json").read_text(), (
        "python crds/generate_arguments.py > crds/rljob_api/rules/arguments.json"
    )


def test_a_command_line_of_ours_is_read_by_sglang():
    script = """
import argparse
from rljob_api.rules.arguments import sglang_command_line
from sglang.srt.server_args import ServerArgs

given = {
    "disable-radix-cache": True, "dllm-fdfo": False, "page-size": 16, "cuda-graph-bs-decode": [1, 2],
    "extra-metric-labels": {"team": "a"}, "schedule-conservativeness": 0.5,
}
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
read = parser.parse_args(["--model-path", "x", *sglang_command_line(given)])
print([getattr(read, name.replace("-", "_")) for name in given] == list(given.values()))
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(CRDS), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )

    assert result.stdout.splitlines()[-1] == "True"
