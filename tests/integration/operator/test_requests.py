"""What a job costs the API server, as the API server counts it."""

import re
from collections.abc import Callable

from local_cluster.kubectl import Kubectl
from waiting import eventually

CHILDREN = 5


def requests(kubectl: Kubectl, verb: str, resource: str) -> int:
    """Return how many such requests the API server has answered."""
    text = kubectl("get", "--raw", "/metrics")
    lines = re.findall(r"^apiserver_request_total\{(.*)\} (\d+)$", text, re.M)
    wanted = (f'resource="{resource}"', f'verb="{verb}"')
    return sum(int(count) for labels, count in lines if all(label in labels for label in wanted))


def test_a_new_job_is_written_and_nothing_is_read_for_it(kubectl: Kubectl, new_job: Callable, start: Callable) -> None:
    start()
    before = [requests(kubectl, verb, "secrets") for verb in ("GET", "POST")]
    job = new_job()
    eventually(job.children, lambda children: len(children) == CHILDREN)
    after = [requests(kubectl, verb, "secrets") for verb in ("GET", "POST")]
    assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1]
