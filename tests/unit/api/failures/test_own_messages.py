"""Each message of the table of bad manifests is a known failure, whatever its field."""

import pytest

from rljob_api.failures.diagnosis import diagnose
from rljob_api.failures.scan import scan
from support.api.bad_manifests import Case, cases

OF_THE_TEXT = ("manifest: stands for more than", "manifest: contains itself")
"""attacks on the reader, which no user meets by mistake"""


@pytest.mark.parametrize(
    "case", [each for each in cases() if not each.says[0].startswith(OF_THE_TEXT)], ids=lambda case: case.name
)
def test_a_refused_manifest_is_a_known_failure(case: Case):
    found = diagnose([scan("output", "".join(f"{line}\n" for line in case.says).encode())]).findings
    assert found[0].failure.code == "RljobBadManifest"


def test_the_status_of_a_job_that_is_not_admitted_has_a_known_failure():
    line = "condition Admitted Invalid: spec.rollout.engines: 0 is less than 1; nearest valid: 1\n"
    assert diagnose([scan("status", line.encode())]).findings[0].failure.code == "RljobBadManifest"


@pytest.mark.parametrize(
    "line",
    [
        "condition Admitted Valid: the manifest is valid",
        "  spec.containers{ray-head}: Pulling image",
        "spec.template.spec.containers[0].image: Required value",
        "the field spec.rollout.engines: 4 is read",
        "spec.rollout.engines=4",
    ],
)
def test_other_lines_with_fields_are_none(line: str):
    assert diagnose([scan("output", f"{line}\n".encode())]).findings == ()


def test_a_request_that_is_sent_again_is_no_failure_of_the_router():
    failed = "reason=router: POST /generate: 500 error sending request for url (http://10.0.0.3:26230/generate)"
    again = f"2026-11-27 00:14:07,822 INFO rljob_trainer.rollouts.sampler action=retry prompt=1:26 {failed}\n"
    assert diagnose([scan("driver", again.encode())]).findings == ()
    assert diagnose([scan("driver", f"{failed}\n".encode())]).findings[0].failure.code == "RouterNoWorkers"
