"""`rljob resume`: whether a job can be resumed in place, and the change of its manifest that does it. Pure."""

from rljob_api.status import Phase
from rljob_cli.jobs.jobs import Manifest


class NotResumableError(Exception):
    """The job does not wait to be resumed; the text says what it does and what to do."""


def patch_of(raw: Manifest) -> Manifest:
    """Return the merge patch that begins another attempt of a failed job; raise NotResumableError.

    It applies to this version of the job only: two people who resume it at once begin one attempt.
    """
    name, spec, status = raw["metadata"]["name"], raw["spec"], raw.get("status", {})
    phase = status.get("phase", "")
    if phase != Phase.FAILED:
        raise NotResumableError(f"{name} is {phase or 'new'}, and only a Failed job can be resumed{_hint(phase, name)}")
    if not status.get("attempts"):
        raise NotResumableError(f"{name} has failed before its first attempt; change its manifest")
    if spec.get("suspend"):
        raise NotResumableError(f"{name} is suspended: set spec.suspend to false, then resume it")
    resumed = (spec.get("recovery", {}).get("resumes") or 0) + 1
    version = raw["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": {"recovery": {"resumes": resumed}}}


def says(raw: Manifest, namespace: str) -> str:
    """Return what happens now, for a job that was resumed."""
    name, status = raw["metadata"]["name"], raw["status"]
    saved = status.get("lastCheckpoint")
    start = f"from step {saved['step']}" if saved else "from step 0: it has no checkpoint"
    following = status["attempts"][-1]["number"] + 1
    return f"{name} resumes with attempt {following}, {start}; follow it: rljob status {name} -n {namespace} --watch"


def _hint(phase: str, name: str) -> str:
    match phase:
        case Phase.SUSPENDED:
            return "; set spec.suspend to false"
        case Phase.INVALID:
            return f"; rljob status {name} shows what is wrong with its manifest"
        case _:
            return ""
