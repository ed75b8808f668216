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
DIRECTORIES = frozenset({"checkpoints", "data", "model", "models", "output", "outputs", "runs"})
"""names that people give to directories of models, and no organisation of the hub has"""
MODEL_FORM = f"{SCHEME}ORG/NAME"
FILE = re.compile(rf"{SCHEME}{DATASETS}(?P<repo>{PART}/{PART})(@(?P<revision>{PART}))?/(?P<path>[^@]+)")
FILE_FORM = f"{SCHEME}{DATASETS}ORG/NAME/FILE"


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


def meant(text: str) -> str | None:
    """Return the reference to a model of the hub whose name alone is given, as `Qwen/Qwen3-4B`; None: it is a path."""
    found = NAME.fullmatch(text)
    return f"{SCHEME}{text}" if found and found["organisation"].lower() not in DIRECTORIES else None


def model(text: str) -> Reference | None:
    """Return the repository of a model; None: the text has another form."""
    found = MODEL.fullmatch(text)
    return Reference(found["repo"], "model", found["revision"] or NEWEST) if found else None


def file(text: str) -> Reference | None:
    """Return a file of a data set; None: the text has another form."""
    found = FILE.fullmatch(text)
    return Reference(found["repo"], "dataset", found["revision"] or NEWEST, found["path"]) if found else None
