"""Whether a job that an older version suspended still is. Pure."""

from rljob_api.status import Phase
from rljob_operator.identity import Manifest


def was_suspended(raw: Manifest) -> bool:
    """Return whether the job was suspended when its spec was last looked at, and the spec has not changed since.

    Then it is suspended, also where the spec does not show that: an older version had `spec.scheduling.suspend`, which
    an API server with today's CRD leaves out.
    """
    status, generation = raw.get("status", {}), raw["metadata"].get("generation", 1)
    return bool(status.get("phase") == Phase.SUSPENDED and status.get("observedGeneration") == generation)
