"""Lays out a copy of the checkout for mutmut, which knows a single source root.

    copy/src/<package>        the package to mutate
    copy/mutants/             the whole checkout; mutmut writes the mutated package to copy/mutants/src

In copy/mutants, `src` comes first on every path, also in processes that a test starts. So the tests import the mutated
package, although the environment has the checkout installed.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOTS = ("crds", "operator", "trainer")
PYTHONPATH = re.compile(r"^pythonpath = \[(.*)\]$", re.MULTILINE)
# mutmut collects tests once, forks, and names them: pytest would escape names from `ids` twice, and not find them.
UNESCAPED = "disable_test_id_escaping_and_forfeit_all_rights_to_community_support = true"

SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {patterns}
do_not_mutate_patterns = ['^\\s*log\\.\\w+\\(', '^\\s*assert ']  # log lines, and what cannot happen
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
process_isolation = "forkserver"  # torch cannot be forked after it has computed
use_git_change_detection = false
timeout_constant = 2.0
"""


@dataclass(frozen=True)
class Target:
    """One package or module, and the tests that judge it; paths are relative to the repository."""

    root: str
    package: str
    """the distribution's package that contains it, such as `rljob_trainer`"""
    modules: tuple[str, ...]
    """files, relative to the root"""
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Workspace:
    root: Path
    target: Target

    @property
    def files(self) -> tuple[Path, ...]:
        """Files to mutate, relative to the workspace."""
        return tuple(Path("src") / module for module in self.target.modules)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        mutants = self.root / "mutants"
        path = [mutants / folder for folder in ("src", *ROOTS)]
        return {**inherited, "PYTHONPATH": ":".join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}


def target(repository: Path, name: str, tests: Sequence[str] | None) -> Target:
    """Find the package or module `name`; raise SystemExit when there is none."""
    relative = Path(*name.split("."))
    for root in ROOTS:
        folder = repository / root
        if (folder / relative).is_dir():
            modules = sorted((folder / relative).rglob("*.py"))
        elif (folder / relative).with_suffix(".py").is_file():
            modules = [(folder / relative).with_suffix(".py")]
        else:
            continue
        files = tuple(str(module.relative_to(folder)) for module in modules)
        return Target(root, relative.parts[0], files, tuple(tests or _tests(repository, relative)))
    raise SystemExit(f"no package or module {name} in {', '.join(ROOTS)}")


def _tests(repository: Path, relative: Path) -> tuple[str, ...]:
    """Return the nearest folder of tests that mirrors the package or holds its mirror, and others that import it."""
    area = Path("tests/unit") / relative.parts[0].removeprefix("rljob_")
    mirror = area.joinpath(*relative.parts[1:])
    while not (repository / mirror).is_dir():
        mirror = mirror.parent
    imports = re.compile(rf"^ *(from|import) {re.escape('.'.join(relative.parts))}\b", re.MULTILINE)
    others = (
        str(path.relative_to(repository))
        for path in sorted((repository / "tests/unit").rglob("test_*.py"))
        if mirror not in path.relative_to(repository).parents and imports.search(path.read_text())
    )
    return (str(mirror), *others)


def lay_out(repository: Path, chosen: Target, directory: Path) -> Workspace:
    """Copy the files of the repository that git does not ignore, committed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (repository / name).is_file():
            copy = directory / "mutants" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, copy)
    shutil.copytree(directory / "mutants" / chosen.root / chosen.package, directory / "src" / chosen.package)
    shutil.copytree(directory / "src", directory / "mutants/src")
    workspace = Workspace(directory, chosen)
    settings = (directory / "mutants/pyproject.toml").read_text()
    settings = PYTHONPATH.sub(rf'pythonpath = ["src", \1]\n{UNESCAPED}', settings)
    settings += SETTINGS.format(patterns=[str(file) for file in workspace.files], tests=list(chosen.tests))
    for folder in (directory, directory / "mutants"):
        (folder / "pyproject.toml").write_text(settings)
    return workspace


def mutant_names(workspace: Workspace) -> list[str]:
    """Return the names of all mutants. The working directory is the workspace's."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    return [
        get_mutant_name(file, name)
        for file in workspace.files
        for name in mutate_file_contents(str(file), file.read_text()).mutant_names
    ]
