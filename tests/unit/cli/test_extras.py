"""With the extra `cluster` alone every verb for clusters works, and every other one names the extra that it needs.

A process sees the packages of that extra and what they need, and no other one that is installed here.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from rljob_api.exits import Exit
from rljob_cli import cluster_commands
from rljob_cli.extras import extra_of

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"

PROGRAM = """
import importlib.abc, importlib.metadata, re, sys
from packaging.requirements import Requirement

def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()

seen, todo = set(), [("rljob", frozenset({"cluster"}))]
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
sys.argv = ["rljob", *sys.argv[1:]]
main()
"""


def rljob(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {"HOME": str(directory), "KUBECONFIG": str(directory / "absent"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=directory)


@pytest.mark.parametrize("verb", [each.__name__ for each in cluster_commands.EXAMPLES])
def test_verbs_for_clusters_work(tmp_path: Path, verb: str) -> None:
    done = rljob(tmp_path, verb, *([] if verb == "top" else ["sums"]))
    assert "kubeconfig" in done.stderr, done.stderr
    assert done.returncode == Exit.SETUP


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (("doctor", "log.txt"), "ahocorasick_rs", "doctor"),
        (("doctor", "sums"), "ahocorasick_rs", "doctor"),
        (("run", "job.yaml"), "psutil", "trainer"),
        (("inspect", "."), "xxhash", "trainer"),
        (("convert", ".", "out"), "torch", "trainer"),
    ],
)
def test_other_verbs_name_their_extra(tmp_path: Path, arguments: tuple[str, ...], package: str, extra: str) -> None:
    (tmp_path / "log.txt").write_text("x\n")
    (tmp_path / "job.yaml").write_text((EXAMPLES / "quickstart.yaml").read_text())
    done = rljob(tmp_path, *arguments)
    assert done.stderr == f"this command needs the package {package}: install rljob with its extra `{extra}`\n"
    assert done.returncode == Exit.SETUP


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("torch", "trainer"),
        ("kubernetes", "cluster"),
        ("ahocorasick_rs", "doctor"),
        ("wandb", "wandb"),
        ("pytest", None),
        ("yaml", None),
        ("nothing", None),
    ],
)
def test_an_extra_is_named_where_one_brings_the_package(package: str, extra: str | None) -> None:
    assert extra_of(package) == extra
