"""What every child of a job begins with. Pure."""

from rljob_operator.identity import API_VERSION, JOB_LABEL, KIND, MANAGED_BY, Manifest
from rljob_operator.job.admitted_job import AdmittedJob


def owned(job: AdmittedJob, api_version: str, kind: str, name: str) -> Manifest:
    """Return a child of this kind, which is deleted with the job."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {JOB_LABEL: job.name, **MANAGED_BY},
            "ownerReferences": [owner],
        },
    }
