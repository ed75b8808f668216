"""The command line where only some of rljob's extras are installed: all other packages here are hidden."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import importlib.abc, importlib.metadata, re, sys
from packaging.requirements import Requirement

def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()

seen, todo = set(), [("rljob", frozenset(filter(None, sys.argv.pop(1).split(","))))]
while todo:
    name, extras = todo.pop()
    if (name, extras) in seen:
        continue
    seen.add((name, extras))
    for line in importlib.metadata.requires(name) or ():
        wanted = Requirement(line)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": each}) for each in extras or {""}):
            todo.append((plain(wanted.name), frozenset(wanted.extras)))
kept = {name for name, _ in seen}
brought = importlib.metadata.packages_distributions()

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        owners = brought.get(name.partition(".")[0])
        if owners and not kept.intersection(map(plain, owners)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in [each for each in sys.modules if each.partition(".")[0] == "packaging"]:
    del sys.modules[name]
sys.meta_path.insert(0, Absent())
from rljob_cli.main import main
main()
"""


def rljob(extras: str, directory: Path, *arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """Run `rljob` in a directory with these extras, `cluster,doctor`; `given` is its standard input."""
    environment = {
        "HOME": str(directory),
        "KUBECONFIG": str(directory / "absent"),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(str(ROOT / part) for part in ("crds", "operator", "trainer")),
    }
    command = [sys.executable, "-c", PROGRAM, extras, *arguments]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, env=environment, cwd=directory
    )
