"""What is said of a rank whose process is gone."""

import pytest
from ray.exceptions import RayActorError

from rljob_trainer.learners.group import lost

IDS = "\n\tclass_name: RankHost\n\tactor_id: ac67\n\tpid: 154\n\tip: 10.208.0.41\n"
FIRST = "The actor died unexpectedly before finishing this task."
DIED = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
NODE = "The actor died because its node has died. Node Id: 235f"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (f"{FIRST}{IDS}{NODE}\n\tthe actor's node was terminated unexpectedly", f"{FIRST} {NODE}"),
        (f"{FIRST}{IDS}{DIED} Some common causes include: (1) the OOM killer", f"{FIRST} {DIED}"),
        (f"{DIED} There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer", DIED),
    ],
)
def test_a_lost_rank_is_explained_in_one_line_without_ids_and_guesses(said: str, kept: str):
    error = RayActorError()
    error.error_msg = said
    assert str(error) == said
    assert str(lost(1, error)) == f"learner rank 1: its process is gone: {kept}"
