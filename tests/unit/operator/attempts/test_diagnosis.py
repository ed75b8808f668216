"""The failure that ended an attempt: from the driver's own line, or from what the operator sees."""

from dataclasses import replace

import pytest

from rljob_api.exits import Exit
from rljob_doctor.catalogue import catalogue
from rljob_operator.world.pod_stage import PodEvent
from rljob_operator.world.world import DriverState
from support.operator.operator_world import Surroundings, raw_job

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB. GPU 0 has a total capacity of 79 GiB"
OUTPUT = "Job entrypoint command failed with exit code 4, last available logs (truncated to 20,000 chars):\n"
LINE = "action=diagnose failure=TrainOutOfMemory seen=rank-0.log: CUDA out of memory"


@pytest.fixture
def around() -> Surroundings:
    return Surroundings(raw_job(recovery={"driverRestarts": 0})).to_running()


def ended(around: Surroundings, message: str = "", code: int = Exit.FAILED) -> dict[str, str] | None:
    """Return the failure in the status after the driver has ended."""
    around.driver(message=message)
    around.ends(code)
    around.step()
    return around.status["attempts"][0].get("failure")


def test_the_driver_s_line_is_believed(around):
    failure = ended(around, f"{OUTPUT}{LINE}\n")
    assert failure is not None
    assert (failure["code"], failure["evidence"]) == ("TrainOutOfMemory", "rank-0.log: CUDA out of memory")
    assert failure["title"] == catalogue()["TrainOutOfMemory"].title


def test_the_job_s_condition_and_an_event_name_it(around):
    ended(around, f"{OUTPUT}MemoryError: no memory\n{LINE}\n")
    known = catalogue()["TrainOutOfMemory"]
    assert around.condition("Failed")["message"].endswith(f"; TrainOutOfMemory: {known.title}. {known.remedy[0]}")
    assert "its last words: MemoryError: no memory" in around.status["attempts"][0]["reason"]
    (event,) = [each for each in around.events if each.action == "Diagnose"]
    assert (event.kind, event.reason) == ("Warning", "TrainOutOfMemory")
    assert event.note.startswith("attempt 1: ")
    assert event.note.endswith("Seen: rank-0.log: CUDA out of memory")


def test_an_event_comes_once(around):
    ended(around, LINE)
    around.step()
    assert sum(each.action == "Diagnose" for each in around.events) == 1


def test_without_the_line_the_end_of_the_output_is_read(around):
    failure = ended(around, f"{OUTPUT}{OOM}\n")
    assert failure is not None and failure["code"] == "TrainOutOfMemory"
    assert failure["evidence"].startswith("driver: torch.OutOfMemoryError")


def test_what_kubernetes_says_of_a_pod_is_read(around):
    trouble = "2026-03-04T10:00:00Z pod sums-head container ray terminated reason: OOMKilled exit code 137: "
    first, *others = around.observed.pods
    around.observed = replace(around.observed, pods=(replace(first, trouble=(trouble,)), *others))
    failure = ended(around, code=Exit.LOST_PEER)
    assert failure is not None and failure["code"] == "PodOutOfMemory"
    assert failure["evidence"] == f"pods: {trouble.strip()}"


def test_events_of_a_pod_are_read(around):
    event = PodEvent("FailedMount", 'MountVolume.SetUp failed for volume "data": no such claim', 0.0)
    around.observed = replace(around.observed, pod_events={"sums-head": (event,)})
    failure = ended(around, code=Exit.LOST_PEER)
    assert failure is not None and "FailedMount" in failure["evidence"]


@pytest.mark.parametrize("code", [Exit.OK, Exit.PREEMPTED])
def test_an_end_in_order_has_none(around, code):
    assert ended(around, LINE, code) is None


def test_an_exception_of_the_user_s_code_is_named_with_its_message(around):
    failure = ended(around, f"{OUTPUT}ValueError: of the user's code\n")
    assert failure is not None
    assert (failure["code"], failure["evidence"]) == ("PythonException", "driver: ValueError: of the user's code")


def test_what_is_in_no_catalogue_is_not_named(around):
    assert ended(around, f"{OUTPUT}1 of 3 questions is answered\n") is None
    assert not [each for each in around.events if each.action == "Diagnose"]


def test_a_driver_that_ray_has_lost_is_a_failure_of_ray(around):
    around.driver(state=DriverState.ABSENT)
    around.step()
    assert around.status["attempts"][0]["failure"]["code"] == "RayGcsLost"


@pytest.mark.parametrize("message", [f"{OUTPUT}a line like any other\n", ""])
def test_of_a_driver_that_was_killed_nothing_says_by_whom(around, message):
    failure = ended(around, message, -9)
    assert failure is not None
    assert (failure["code"], failure["evidence"][:25]) == ("ProgramFailed", "driver: killed by SIGKILL")
    assert "memory" not in failure["title"] and "nothing says who" in failure["title"]
    assert "nothing says who sent it" in around.condition("Failed")["message"]


def test_a_driver_that_was_killed_in_a_container_without_memory_is_named(around):
    first, *others = around.observed.pods
    trouble = "2026-03-04T10:00:00Z pod sums-head container ray terminated reason: OOMKilled exit code 137: "
    around.observed = replace(around.observed, pods=(replace(first, trouble=(trouble,)), *others))
    failure = ended(around, f"{OUTPUT}a line like any other\n", -9)
    assert failure is not None and failure["code"] == "PodOutOfMemory"


def test_a_container_that_got_the_signal_alone_says_nothing_of_memory(around):
    first, *others = around.observed.pods
    trouble = "2026-03-04T10:00:00Z pod sums-head container ray terminated reason: Error exit code 137: "
    around.observed = replace(around.observed, pods=(replace(first, trouble=(trouble,)), *others))
    failure = ended(around, code=Exit.LOST_PEER)
    assert failure is not None and failure["code"] == "ProgramFailed"


def test_a_raycluster_that_somebody_deleted_is_named(around):
    kept = tuple(child for child in around.observed.children if child["kind"] != "RayCluster")
    around.observed = replace(around.observed, children=kept)
    around.step()
    assert around.status["attempts"][0]["failure"]["code"] == "RayNodeDied"


def test_it_is_remembered(around):
    before = ended(around, LINE)
    around.now += 60
    around.step()
    assert around.status["attempts"][0]["failure"] == before


def out_of_memory(around: Surroundings) -> None:
    around.driver(message=LINE)
    around.ends(Exit.FAILED)
    around.step()
    around.now += 60
    for _ in range(3):  # the second time on a new RayCluster
        around.deletions_done()
        around.pods_ready()
        around.step()
    around.ray_answers()


def test_the_next_attempt_after_one_without_memory_takes_less_and_the_status_says_so():
    around = Surroundings(raw_job(training={"maxTokensPerGpu": 1000}, runtime={"device": "Gpu"})).to_running()
    out_of_memory(around)
    orders = around.plan().orders
    assert orders.submit is not None
    assert orders.submit.startswith("""exec env RLJOB_ADJUSTMENTS='{"training.maxTokensPerGpu": 900}' python -m""")
    assert around.status["recovery"][-1]["cause"].endswith("; attempt 2 uses training.maxTokensPerGpu 900")
    around.step()
    around.runs()
    around.step()
    out_of_memory(around)
    assert "810" in around.plan().orders.submit


def test_a_job_may_forbid_it():
    around = Surroundings(raw_job(recovery={"adjustMemory": False}, runtime={"device": "Gpu"})).to_running()
    out_of_memory(around)
    assert around.plan().orders.submit.startswith("exec python -m")
    assert "uses" not in around.status["recovery"][-1]["cause"]


def test_a_driver_never_reads_whether_it_may():
    around = Surroundings(raw_job(recovery={"adjustMemory": False}, runtime={"device": "Gpu"})).to_running()
    (config,) = [child for child in around.observed.children if child["kind"] == "ConfigMap"]
    assert "adjustMemory" not in config["data"]["manifest.yaml"]
