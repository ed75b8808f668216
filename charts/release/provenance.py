"""Where files come from, as in-toto's statement with SLSA's provenance. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "https://rljob.dev/make-release/v1"
BUILDER: Final = "https://rljob.dev/make-release"


@dataclass(frozen=True, slots=True)
class Source:
    """The checkout that was built."""

    uri: str
    commit: str
    changed: bool
    """whether it has changes that are not committed"""


def statement(
    subjects: Mapping[str, str], source: Source, inputs: Mapping[str, str], started: datetime, ended: datetime
) -> dict[str, Any]:
    """Return the statement about files and images, given by name with their sha256; `inputs` are the locks."""
    commit = {"uri": f"git+{source.uri}", "digest": {"gitCommit": source.commit}}
    locks = [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(inputs.items())]
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"source": source.uri, "commit": source.commit},
                "internalParameters": {"uncommittedChanges": source.changed},
                "resolvedDependencies": [commit, *locks],
            },
            "runDetails": {
                "builder": {"id": BUILDER},
                "metadata": {"startedOn": _text(started), "finishedOn": _text(ended)},
            },
        },
    }


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
