"""A program that lets the webhook and the operator judge costly manifests, and prints what each has cost as JSON.

Memory is that of the whole process beyond what it had before: so it needs a process of its own.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljob_api.errors import ManifestError
from rljob_api.reading import manifest
from rljob_operator.webhook.review.answer import answer
from support.api.costly_manifests import COSTLY, LARGEST, costly
from support.operator.operator_world import DEFAULTS, Surroundings, raw_job
from support.processor_time import measured


def by_webhook(raw: dict[str, Any]) -> object:
    return answer({"operation": "CREATE", "namespace": "ml", "object": raw}, DEFAULTS, None).outcome


def by_operator(raw: dict[str, Any]) -> object:
    around = Surroundings(raw)
    around.step()
    return around.status.get("phase")


def by_validate(raw: dict[str, Any]) -> object:
    try:
        manifest.load(json.dumps(raw))
    except ManifestError:
        return "refused"
    return "taken"


def cost(judge: Callable[[dict[str, Any]], object], raw: dict[str, Any]) -> tuple[float, float, object]:
    """Return CPU time [s], memory beyond what was taken before [MiB], and what was found."""
    manifest._kept.__init__(manifest.MOST_KEPT)  # type: ignore[misc]
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before_mib = resident_mib("VmRSS")
    with measured() as spent:
        found = judge(raw)
    return spent.seconds, resident_mib("VmHWM") - before_mib, found


def resident_mib(which: str) -> float:
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def main() -> None:
    by_operator(raw_job())  # what is read once
    by_validate(costly({"unknown": 1}))
    costs = {
        f"{name} by {judge.__name__[3:]}": cost(judge, {**raw_job(), "spec": costly(edits)["spec"]})
        for name, edits in {**COSTLY, **LARGEST}.items()
        for judge in (by_validate, by_webhook, by_operator)
    }
    print(json.dumps(costs))


if __name__ == "__main__":
    main()
