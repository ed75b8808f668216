"""`rljob resume`: which jobs can be resumed in place, and how."""

from typing import Any

import pytest

from rljob_cli.jobs.resumption import NotResumableError, patch_of, says

ATTEMPT = {"number": 2, "exitCode": 5}


def job(phase: str = "Failed", spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "sums", "resourceVersion": "41"},
        "spec": spec or {},
        "status": {"phase": phase, "attempts": [ATTEMPT], **status},
    }


@pytest.mark.parametrize(
    ("recovery", "resumes"), [({}, 1), ({"resumes": None}, 1), ({"resumes": 0}, 1), ({"resumes": 4}, 5)]
)
def test_a_failed_job_gets_one_more_resume_at_the_version_that_was_read(recovery: dict[str, Any], resumes: int) -> None:
    wanted = {"metadata": {"resourceVersion": "41"}, "spec": {"recovery": {"resumes": resumes}}}
    assert patch_of(job(spec={"recovery": recovery})) == wanted


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (job("Training"), "sums is Training, and only a Failed job can be resumed"),
        (job("Succeeded"), "sums is Succeeded, and only a Failed job can be resumed"),
        (
            job("Suspended"),
            "sums is Suspended, and only a Failed job can be resumed; set spec.suspend to false",
        ),
        (
            job("Invalid"),
            "sums is Invalid, and only a Failed job can be resumed; "
            "rljob status sums shows what is wrong with its manifest",
        ),
        ({**job(), "status": {}}, "sums is new, and only a Failed job can be resumed"),
        (job(attempts=[]), "sums has failed before its first attempt; change its manifest"),
        (
            job(spec={"suspend": True}),
            "sums is suspended: set spec.suspend to false, then resume it",
        ),
    ],
)
def test_any_other_job_is_refused_with_the_reason(given: dict[str, Any], why: str) -> None:
    with pytest.raises(NotResumableError) as refused:
        patch_of(given)
    assert str(refused.value) == why


def test_the_answer_names_attempt_and_step() -> None:
    assert says(job(lastCheckpoint={"step": 20, "path": "p"}), "ml") == (
        "sums resumes with attempt 3, from step 20; follow it: rljob status sums -n ml --watch"
    )
    assert "attempt 3, from step 0: it has no checkpoint" in says(job(), "ml")
