"""The columns of `kubectl get rlj` in every phase."""

import pytest

from support.operator.job_phases import Seen

SHOWS = {
    "Unseen": {"PHASE": "", "STEP": "", "ENGINES": "", "GPUS": "", "MESSAGE": ""},
    "Invalid": {"PHASE": "Invalid", "STEP": "", "ENGINES": "", "ATTEMPT": "0"},
    "Provisioning": {"PHASE": "Provisioning", "STEP": "", "ENGINES": "0", "GPUS": "4", "ATTEMPT": "1"},
    "Starting": {"PHASE": "Starting", "STEP": "", "ENGINES": "0", "MESSAGE": "attempt 1 starts"},
    "Training": {
        "PHASE": "Training",
        "STEP": "3",
        "OF": "10",
        "REWARD": "0.25",
        "ENGINES": "2",
        "GPUS": "4",
        "VERSION": "3",
        "ATTEMPT": "1",
        "SAVED": "2",
        "MESSAGE": "attempt 1 trains",
    },
    "Recovering": {"PHASE": "Recovering", "STEP": "3", "ENGINES": "1"},
    "Suspending": {"PHASE": "Suspending", "STEP": "3", "ENGINES": "2", "MESSAGE": "attempt 1 saves and ends"},
    "Suspended": {"PHASE": "Suspended", "STEP": "3", "ENGINES": "0", "SAVED": "2", "MESSAGE": "the job is suspended"},
    "Succeeded": {"PHASE": "Succeeded", "STEP": "3", "ENGINES": "0", "SAVED": "2", "MESSAGE": "all steps are done"},
    "Failed": {"PHASE": "Failed", "STEP": "3", "ENGINES": "0"},
}


@pytest.mark.parametrize("phase", SHOWS)
def test_the_columns_show_what_is_known(phases: dict[str, Seen], phase: str):
    assert phases[phase].columns.items() >= SHOWS[phase].items()
