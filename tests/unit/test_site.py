"""The site as it is built: links and anchors lead somewhere, commands exist, and its search finds the page."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from support.cli.verbs import VERBS
from support.tables import each_of

ROOT = Path(__file__).parents[2]
PAGES = (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
BLOCK = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *(?:\$ )?(?:\w+=\S+ )*((?:rljob|make) (?!setup:|[0-9])[^#|>\n]+)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")
BASE = "http://site/"
QUESTIONS = {
    "fit my cluster": "limits/",
    "install": "install/",
    "GPU": "gpu/",
    "several machines": "scaling/",
    "multi-node": "scaling/",
    "reward function": "rewards/",
    "hugging face": "hub/",
    "dataset": "hub/",
    "agents": "agents/",
    "tools": "generate/",
    "NFS": "storage/",
    "S3": "storage/",
    "InfiniBand": "network/",
    "RDMA": "network/",
    "node dies": "node-failure/",
    "curves": "quickstart/",
    "Kueue": "kueue/",
    "upgrade": "upgrade/",
    "LoRA": "limits/",
    "vLLM": "limits/",
    "custom code": "your-code/",
    "exit code": "command-line/",
    "NcclTimeout": "troubleshooting/nccl-gloo-and-the-network/",
    "example": "examples/",
    "checkpoint": "checkpoints/",
    "from verl": "from-verl/",
}
"""what people look for, with the page that has to come first"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site with warnings as errors, and return its directory."""
    target = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


class Page(HTMLParser):
    """The anchors of a page, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.links = {""}, set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and tag != "meta" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def test_links_lead_to_files_and_anchors_of_the_site(site: Path):
    pages = {path.relative_to(site): Page(path.read_text()) for path in site.rglob("*.html")}
    found = {Path("404.html"): set(), **{name: broken(name, page, site, pages) for name, page in pages.items()}}
    assert {str(name): links for name, links in found.items() if links and name.name != "404.html"} == {}
    assert len(pages) > 60


def broken(name: Path, page: Page, site: Path, pages: Mapping[Path, Page]) -> set[str]:
    """Return the links of a page within the site that lead to nothing."""
    missing = set()
    for link in page.links:
        address = urlsplit(urljoin(f"{BASE}{name}", link))
        if address.netloc != "site":
            continue
        target = Path(unquote(address.path).lstrip("/"))
        target = target / "index.html" if (site / target).is_dir() else target
        anchors = pages[target].anchors if target in pages else {""} if (site / target).is_file() else set()
        if unquote(address.fragment) not in anchors:
            missing.add(link)
    return missing


def commands() -> list[tuple[str, str]]:
    """Return each command of `rljob` and `make` in the blocks of a page, with the page's name."""
    blocks = [(page.name, block) for page in PAGES for block in BLOCK.findall(page.read_text())]
    return sorted({(page, command.strip()) for page, block in blocks for command in COMMAND.findall(block)})


@each_of(commands(), ": ".join)
def test_a_command_on_a_page_exists_with_its_options_and_files(page: str, command: str):
    program, *words = shlex.split(command)
    assert words[0] in TARGETS if program == "make" else not unknown_parts(" ".join(words))
    files = [word for word in words if word.startswith("docs/examples/") and "*" not in word]
    assert [file for file in files if not (ROOT / file).exists()] == []


def unknown_parts(words: str) -> list[str]:
    """Return what of a command line of rljob does not exist: the verb, or options."""
    if words.startswith(("--", "explain ", "COMMAND")):  # its names may begin with dashes
        return []
    words = re.sub(r"^runs (?!list|prune)", "runs list ", words)  # its verb when none is given
    verb = next((verb for verb in VERBS if f"{words} ".startswith(f"{verb} ")), None)
    if verb is None:
        return [words]
    known = {name for option in VERBS[verb].params for name in option.opts} | {"--help", "-h"}
    return [option for option in OPTION.findall(words) if option not in known]


@pytest.mark.skipif(shutil.which("node") is None, reason="the search of the site is a program for JavaScript")
def test_the_search_shows_first_the_page_that_answers(site: Path):
    script = ROOT / "tests" / "support" / "site" / "search.js"
    done = subprocess.run(
        ["node", str(script), str(site), *QUESTIONS], capture_output=True, text=True, check=True, timeout=60
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    first = {question: (pages or [""])[0].partition("#")[0] for question, pages in zip(QUESTIONS, found, strict=True)}
    assert first == QUESTIONS
