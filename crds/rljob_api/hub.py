"""References to the Hugging Face Hub: `hf://ORG/NAME[@REVISION]`, `hf://datasets/ORG/NAME[@REVISION]/FILE`."""

import re
from dataclasses import dataclass

SCHEME = "hf://"
DATASETS = "datasets/"
NEWEST = "main"
"""branch of a reference without a revision"""
PART = r"[A-Za-z0-9_.-]+"
MODEL = re.compile(rf"{SCHEME}(?P<repo>{PART}/{PART})(@(?P<revision>[A-Za-z0-9_./-]+))?")
NAME = re.compile(r"(?P<organisation>[A-Za-z0-9][A-Za-z0-9_.-]*)/[A-Za-z0-9][A-Za-z0-9_.-]*")
DIRECTORIES = frozenset({"checkpoints", "data", "datasets", "model", "models", "output", "outputs", "runs"})
"""names that people give to directories of models, and no organisation of the hub has"""
ROWS = (".json", ".jsonl", ".parquet")
"""ends of files, which no name of a data set has"""
MODEL_FORM = f"{SCHEME}ORG/NAME"
FILE = re.compile(rf"{SCHEME}{DATASETS}(?P<repo>{PART}/{PART})(@(?P<revision>{PART}))?/(?P<path>[^@]+)")
FILE_FORM = f"{SCHEME}{DATASETS}ORG/NAME/FILE"


PAGE = re.compile(rf"(https?://)?(www\.)?(huggingface\.co|hf\.co)/(?P<repo>({DATASETS})?{PART}/{PART})(?P<rest>/.*)?")
"""address of a repository's page, or of a file in it"""
IN_REPOSITORY = re.compile(rf"/(blob|resolve|raw|tree)/(?P<revision>{PART})(/(?P<path>[^?]+))?.*")


@dataclass(frozen=True, slots=True)
class Reference:
    """A repository of the hub, at a revision: a branch, a tag or a commit."""

    repo: str
    kind: str
    """`model` or `dataset`"""
    revision: str = NEWEST
    path: str = ""
    """of a file; empty: the repository"""

    def __str__(self) -> str:
        kind = DATASETS if self.kind == "dataset" else ""
        revision = "" if self.revision == NEWEST else f"@{self.revision}"
        return f"{SCHEME}{kind}{self.repo}{revision}{self.path and '/' + self.path}"


def is_reference(text: str) -> bool:
    """Return whether a manifest's value names something on the hub."""
    return text.startswith(SCHEME)


def meant(text: str, is_model: bool) -> str | None:
    """Return the reference to what is given by its name alone, as `Qwen/Qwen3-4B`; None: it is a path."""
    found = NAME.fullmatch(text)
    if found is None or found["organisation"].lower() in DIRECTORIES or text.endswith(ROWS):
        return None
    return f"{SCHEME}{text}" if is_model else f"{SCHEME}{DATASETS}{text}/FILE"


def of_page(address: str) -> str | None:
    """Return the reference to what the address of a page of the hub shows; None: it is another address."""
    found = PAGE.fullmatch(address)
    if found is None:
        return None
    repo = found["repo"]
    place = IN_REPOSITORY.fullmatch(found["rest"] or "")
    revision = "" if place is None or place["revision"] == NEWEST else f"@{place['revision']}"
    if not repo.startswith(DATASETS):
        return f"{SCHEME}{repo}{revision}"
    return f"{SCHEME}{repo}{revision}/{(place and place['path']) or 'FILE'}"


def model(text: str) -> Reference | None:
    """Return the repository of a model; None: the text has another form."""
    found = MODEL.fullmatch(text)
    return Reference(found["repo"], "model", found["revision"] or NEWEST) if found else None


def file(text: str) -> Reference | None:
    """Return a file of a data set; None: the text has another form."""
    found = FILE.fullmatch(text)
    return Reference(found["repo"], "dataset", found["revision"] or NEWEST, found["path"]) if found else None
