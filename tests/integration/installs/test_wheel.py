"""What a stranger has after an installation from the wheel, in an environment with nothing else."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from rljob_api.exits import Exit
from support.cli.empty_environment import ROOT, EmptyEnvironment, built_wheel, installed
from support.cli.verbs import VERBS
from support.cli.wheel_needs import needs
from support.cluster.locks import pins

JOB = str(ROOT / "docs" / "examples" / "quickstart.yaml")
LARGEST_MIB = 150
FOR_CLUSTERS = {
    "status": "sums",
    "why": "sums",
    "resume": "sums",
    "top": "-A",
    "logs": "sums",
    "plot": "sums",
    "chaos": "sums",
}
ALONE = {
    "init": ["mine.yaml"],
    "validate": [JOB],
    "plan": [JOB],
    "explain": ["9"],
    "export slime": [JOB],
    "runs list": ["."],
    "runs prune": [".", "--older-than", "30d"],
}
WITH_ANOTHER_EXTRA = {
    "run": ([JOB], "trainer"),
    "report": (["."], "trainer"),
    "reward test": ([JOB], "trainer"),
    "rollout test": ([JOB], "trainer"),
    "rollout show": (["."], "trainer"),
    "inspect": (["."], "trainer"),
    "convert": ([".", "out"], "trainer"),
    "doctor": ([JOB], "doctor"),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> EmptyEnvironment:
    return installed(tmp_path_factory.mktemp("cluster"), wheel, "cluster", "cluster")


def test_the_extra_for_clusters_is_small_and_has_no_torch(environment: EmptyEnvironment) -> None:
    (site_packages,) = environment.path.glob("lib/python3.*/site-packages")
    assert (site_packages / "kubernetes").is_dir()
    assert not list(site_packages.glob("torch*")) + list(site_packages.glob("nvidia*"))
    assert environment.mib() < LARGEST_MIB


@pytest.mark.parametrize("program", ["rljob", "kubectl-rljob"])
def test_the_programs_show_version_and_help(environment: EmptyEnvironment, program: str) -> None:
    version = environment.run(program, "--version")
    assert (version.stdout, version.stderr) == (f"rljob {metadata.version('rljob')}\n", "")
    assert "\nCommands:\n" in environment.run(program, "--help").stdout


def test_shells_can_complete(environment: EmptyEnvironment) -> None:
    assert environment.run("kubectl_complete-rljob", "stat").stdout == "status\n:4\n"


def test_the_tables_of_this_file_have_every_verb() -> None:
    assert {*FOR_CLUSTERS, *ALONE, *WITH_ANOTHER_EXTRA, "import"} == VERBS.keys()


@pytest.mark.parametrize("verb", FOR_CLUSTERS)
def test_a_verb_for_clusters_says_that_none_is_configured(environment: EmptyEnvironment, verb: str) -> None:
    done = environment.run("rljob", verb, FOR_CLUSTERS[verb])
    assert done.stderr.startswith("no cluster is configured: ")
    assert done.returncode == Exit.SETUP


@pytest.mark.parametrize("verb", ALONE)
def test_a_verb_for_manifests_works(environment: EmptyEnvironment, verb: str) -> None:
    done = environment.run("rljob", *verb.split(), *ALONE[verb])
    assert (done.returncode, done.stderr) == (Exit.OK, "")


def test_a_script_is_imported(environment: EmptyEnvironment, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python3 train.py --hf-checkpoint /models/Qwen3-4B --rollout-batch-size 32\n")
    done = environment.run("rljob", "import", str(script))
    assert "checkpoint: /models/Qwen3-4B" in done.stdout, done.stderr


@pytest.mark.parametrize("verb", WITH_ANOTHER_EXTRA)
def test_any_other_verb_names_its_extra(environment: EmptyEnvironment, verb: str) -> None:
    arguments, extra = WITH_ANOTHER_EXTRA[verb]
    done = environment.run("rljob", *verb.split(), *arguments)
    named = r"this command needs the package \w+: install rljob with its extra `(\w+)`\n"
    assert re.fullmatch(named, done.stderr), done.stderr
    assert re.findall(named, done.stderr) == [extra]
    assert done.returncode == Exit.SETUP


@pytest.mark.parametrize(("extra", "lock"), [("cluster", "cluster"), ("operator", "operator"), ("cpu", "trainer")])
def test_the_lock_of_an_extra_has_all_that_it_needs_and_nothing_else(wheel: Path, extra: str, lock: str) -> None:
    needed = needs(wheel, extra)
    locked = pins(lock)
    assert needed.keys() == locked.keys()
    unmet = [wanted for name in needed for wanted in needed[name] if not wanted.specifier.contains(locked[name])]
    assert unmet == []
