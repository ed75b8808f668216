"""What a job costs the API server, as the operator counts it.

The API server's own count has the garbage collector's requests, too, which now and then looks at a Secret whose owner
it does not know yet.
"""

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from support.operator.operator_process import OperatorProcess
from support.waiting import eventually

CHILDREN = 5


def requests(operator: OperatorProcess, verb: str, resource: str) -> int:
    """Return how many such requests have been answered."""
    _, text = operator.get("/metrics")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    wanted = {"verb": verb, "resource": resource}.items()
    return sum(
        int(sample.value)
        for sample in samples
        if sample.name == "rljob_operator_api_requests_total" and wanted <= sample.labels.items()
    )


OF_SECRETS = [1, 2]
"""gets and creations: the operator's own key is looked for and made, and the job's Secret is made"""


def test_a_new_job_is_written_and_nothing_is_read_for_it(new_job: Callable, start: Callable) -> None:
    operator = start()
    job = new_job()
    eventually(job.children, lambda children: len(children) == CHILDREN)
    assert [requests(operator, verb, "secrets") for verb in ("get", "create")] == OF_SECRETS
