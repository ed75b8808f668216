"""The look for secrets in logs, which ends a session of integration tests with an error if it finds one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_api.control import TOKEN_VARIABLE
from support import secrets_in_logs
from support.secrets_in_logs import found, found_in, note, note_those_of_processes

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef" * 4  # of nothing
SIGNED = f"eyJ{'a' * 30}.eyJ{'b' * 30}.{'c' * 43}"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """What is known in this test."""
    empty: set[bytes] = set()
    monkeypatch.setattr(secrets_in_logs, "_known", empty)
    return empty


@pytest.mark.parametrize(
    "line",
    [
        f"GET /v1/status Authorization: Bearer {TOKEN}",
        "headers={'Authorization': 'Bearer abc'}",
        f"said bearer {TOKEN}",
        f"kubeconfig of {SIGNED}",
        f"RLJOB_ENGINE_KEY={TOKEN} python -m sglang",
        f"server_args=ServerArgs(api_key='{TOKEN}')",
        f'"RAY_AUTH_TOKEN": "{TOKEN}"',
    ],
)
def test_what_looks_like_a_secret_is_found_with_its_line(line: str) -> None:
    assert [number for number, _ in found(f"one\ntwo {line}\nthree".encode())][:1] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: ***",
        "401 Unauthorized: a bearer token is needed",
        "api_key=None",
        "RLJOB_TOKEN is missing",
        f"digest {TOKEN}",
        "Bearer ***",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert list(found(line.encode())) == []


@pytest.mark.parametrize("secret", [TOKEN, SIGNED, "url-safe_token-of-the-driver"])
def test_a_known_secret_is_found_wherever_it_stands(secret: str, tmp_path: Path) -> None:
    note(secret)
    shown = secret.rpartition(".")[2]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "driver.log").write_text(f"begins\nurl=http://x?key={shown}&a=1\n")
    (tmp_path / "manifest.yaml").write_text(secret)

    lines = [found_in(path) for path in (tmp_path / "logs", tmp_path)]

    assert [len(each) for each in lines] == [1, 1]
    assert lines[0][0].startswith(f"{tmp_path}/logs/driver.log:2: ")
    assert secret not in lines[0][0]


def test_secrets_of_processes_are_known(known: set[bytes]) -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, TOKEN_VARIABLE: TOKEN}) as process:
        note_those_of_processes()
        process.kill()
    assert TOKEN.encode() in known


SUITE = """
def test_passes(tmp_path):
    (tmp_path / "operator.log").write_text("a line\\n" + {line!r})
"""


@pytest.mark.parametrize(("line", "code"), [(f"sent bearer {TOKEN}", 1), ("sent a request", 0)])
def test_a_session_that_leaves_a_secret_in_a_log_fails(line: str, code: int, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "integration" / "conftest.py", tmp_path)
    (tmp_path / "test_suite.py").write_text(SUITE.format(line=line))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/base"]
    paths = [str(ROOT / name) for name in ("tests", "crds", "operator", "trainer")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environ, capture_output=True, text=True)

    assert done.returncode == code, done.stdout
    assert ("operator.log:2: looks like a secret" in done.stdout) == (code == 1)
    assert TOKEN not in done.stdout
