"""Unmodified clients of agents in an environment of their own, and how a program of it is run with a session."""

import os
import sys
import tempfile
from pathlib import Path

from local_cluster.binaries import cache, cache_key
from support.cli.empty_environment import ROOT, uv

LOCK = ROOT / "requirements" / "clients.txt"
PROGRAMS = Path(__file__).parent / "clients"
CLIENTS = tuple(sorted(file.stem for file in PROGRAMS.glob("*.py")))


def client_python() -> Path:
    """Return the interpreter of an environment with the lock of clients; it is kept by the lock's contents."""
    key = cache_key(LOCK.read_bytes(), sys.version.encode())
    kept = cache(os.environ).parent / f"clients-{key}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as directory:
            made = Path(directory) / "environment"
            uv(Path(directory), "venv", "--python", sys.executable, str(made))
            install = ("pip", "install", "--python", str(made / "bin" / "python"), "--require-hashes", "-r", str(LOCK))
            uv(Path(directory), *install)
            if not kept.exists():  # another process was not quicker
                made.rename(kept)
    return kept / "bin" / "python"


def session_variables(base_url: str, api_key: str, question: str, max_tokens: int, home: Path) -> dict[str, str]:
    """Return the whole environment of a client's program: no variable of ours, and no network but the gateway's."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": api_key,
        "QUESTION": question,
        "MAX_TOKENS": str(max_tokens),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "127.0.0.1",
    }
