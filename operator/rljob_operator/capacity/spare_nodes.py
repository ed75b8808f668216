"""Whether a job still fits when some nodes are left out. Pure."""

from collections.abc import Sequence

from rljob_operator.capacity.demand import demand
from rljob_operator.capacity.packing import Node, fits
from rljob_operator.job.admitted_job import AdmittedJob


def has_room_without(job: AdmittedJob, nodes: Sequence[Node] | None, left_out: Sequence[str]) -> bool:
    """Return whether all pods of a job fit on the other nodes if these are empty; None: the nodes are not known.

    Where they are not known, or are in use, the scheduler says so later: its pods then wait.
    """
    if nodes is None:
        return True
    others = [node for node in nodes if node.is_schedulable and node.hostname not in left_out]
    return fits(demand(job), others) is not False
