"""A deleted control Secret: how it is noticed, and with which token it is made again."""

import asyncio
import base64
from dataclasses import replace
from typing import Any, cast

import pytest

from rljob_operator.attempts.attempt_view import attempt_view
from rljob_operator.attempts.attempts import advance
from rljob_operator.attempts.escalation import LOCKED_OUT_S
from rljob_operator.children.children import secret as secret_of
from rljob_operator.cluster.cluster import Cluster
from rljob_operator.execution.keys import Keys
from rljob_operator.execution.tokens import DOUBT_S, LOOK_S, Tokens
from rljob_operator.identity import KEY_ANNOTATION, Manifest
from rljob_operator.status.record import history_of
from rljob_operator.world.pod_stage import PodStage, Stage
from rljob_operator.world.world import Driver, DriverState, Pod, job_of
from support.operator.fake_cluster import FakeCluster
from support.operator.operator_world import NOW, Surroundings, admitted, raw_job, running

POD = Pod("head", "sums-7f3a1-1", True, False, False, None)
WAITING = replace(POD, stage=PodStage(Stage.CONFIG, NOW, 'secret "sums-7f3a1" not found'))
DRIVER = Driver("sums-7f3a1-attempt-1", since=NOW, state=DriverState.RUNNING)
REFUSING = replace(DRIVER, refuses_since=NOW)


ATTEMPT = {"number": 1, "cluster": "sums-7f3a1-1", "startAfter": "2026-11-27T10:00:00Z"}


class Vault:
    """Tokens of one job that has begun, whose RayCluster names the current key."""

    def __init__(self) -> None:
        raw = raw_job()
        self.now, self.cluster, self.keys = NOW, FakeCluster(raw), Keys.of(b"k" * 32, b"o" * 32)
        self.job = job_of({**raw, "status": {"attempts": [ATTEMPT]}})
        self.admitted = admitted(raw)
        self.raycluster: Manifest | None = raycluster(1, self.keys.current)
        self.restart()

    def restart(self) -> None:
        """Another process takes over."""
        self.tokens = Tokens(cast(Cluster, self.cluster), self.keys, lambda: self.now)

    def has_secret(self, *pods: Pod, driver: Driver | None = None) -> bool:
        children = (self.raycluster,) if self.raycluster is not None else ()
        return asyncio.run(self.tokens.has_secret(self.job, children, pods, driver))

    def make(self) -> str:
        """Make the Secret as a plan does, and return its token."""
        secret = secret_of(self.admitted, self.tokens.token(self.job), self.tokens.key_of_secret(self.job))
        asyncio.run(self.tokens.create(self.job, secret))
        return base64.b64decode((self.cluster.secret or {})["data"]["token"]).decode()

    def token(self) -> str:
        return self.tokens.token(self.job)

    def put(self, name: str = "sums-7f3a1", **data: str) -> None:
        """Somebody else, or an older operator, makes the Secret."""
        encoded = {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}
        self.cluster.secret = {"data": encoded, "metadata": {"name": name}}

    def of_an_older_operator(self) -> None:
        """Make the RayCluster one of an older operator, with a token made at random."""
        self.raycluster = raycluster(1)
        self.put(token="random")


def raycluster(number: int, key: str | None = None, **metadata: str) -> Manifest:
    annotations = {KEY_ANNOTATION: key} if key is not None else {}
    return {"kind": "RayCluster", "metadata": {"name": f"sums-7f3a1-{number}", "annotations": annotations, **metadata}}


@pytest.fixture
def vault() -> Vault:
    return Vault()


@pytest.mark.parametrize(
    ("pods", "driver", "after_s"),
    [((), None, LOOK_S), ((POD,), DRIVER, LOOK_S), ((WAITING,), None, DOUBT_S), ((), REFUSING, DOUBT_S)],
    ids=["in time", "pods that start", "a pod that waits for it", "a driver that refuses"],
)
def test_a_deleted_secret_is_noticed_and_made_again_with_the_same_token(vault, pods, driver, after_s):
    token = vault.make()
    vault.cluster.secret = None
    vault.now += after_s - 1
    assert vault.has_secret(*pods, driver=driver), "not looked for yet"
    vault.now += 1
    assert not vault.has_secret(*pods, driver=driver)
    assert vault.make() == token
    assert vault.has_secret(*pods, driver=driver)


def test_a_new_process_makes_a_deleted_secret_again_with_the_same_token_and_reads_none(vault):
    token = vault.make()
    vault.cluster.secret = None
    vault.restart()
    assert vault.has_secret(), "it is looked for after a while: a restart asks for no Secret of any job"
    vault.now += LOOK_S
    assert not vault.has_secret()
    assert (vault.make(), vault.cluster.secret_reads) == (token, 0)


def test_a_secret_that_is_there_stays_as_it_is(vault):
    vault.make()
    there = vault.cluster.secret
    vault.now += LOOK_S
    assert not vault.has_secret()
    vault.make()
    assert vault.has_secret()
    assert vault.cluster.secret is there
    assert vault.cluster.deleted == []


@pytest.mark.parametrize("change", ["namespace", "name", "uid"])
def test_each_job_has_another_token(vault, change):
    other = replace(vault.job, **{change: "other"})
    assert vault.keys.token(other, vault.keys.current) != vault.token()


def test_the_operator_s_key_does_not_show_in_a_token_or_its_id(vault):
    assert len(vault.token()) == 64
    assert "k" * 8 not in vault.token() + vault.keys.current
    assert vault.keys.current != Keys.of(b"o" * 32).current


@pytest.mark.parametrize("key", ["o", "lost"])
def test_a_cluster_of_an_older_key_goes_on_with_it_and_the_next_one_has_the_current_key(vault, key):
    older, current = Keys.of((key * 32)[:32].encode()), vault.keys
    vault.raycluster = raycluster(1, older.current)
    assert vault.has_secret()
    owner = older if key == "o" else current
    assert vault.token() == owner.token(vault.job, owner.current)
    vault.raycluster = None
    assert not vault.has_secret()
    assert vault.token() == current.token(vault.job, current.current)


def test_another_secret_is_made_before_a_cluster_with_another_key_is_built(vault):
    vault.of_an_older_operator()
    assert vault.has_secret()
    vault.raycluster = None
    assert not vault.has_secret()
    assert vault.make() == vault.token() != "random"
    assert vault.cluster.secret["metadata"]["name"] == f"sums-7f3a1-{vault.keys.current}"
    assert vault.cluster.deleted == [], "the pods of the older one may still end with it"
    vault.raycluster = raycluster(2, vault.keys.current)
    assert vault.has_secret()
    assert vault.cluster.secret_reads == 1


def test_a_process_that_dies_before_it_builds_a_cluster_leaves_a_secret_that_the_next_one_keeps(vault):
    vault.raycluster = None
    token = vault.make()
    there = vault.cluster.secret
    vault.restart()
    assert not vault.has_secret(), "it is found by creating it"
    assert vault.make() == token
    assert (vault.cluster.secret, vault.cluster.deleted) == (there, [])


def test_a_cluster_that_is_being_deleted_does_not_count(vault):
    vault.of_an_older_operator()
    vault.raycluster = raycluster(1, deletionTimestamp="2026-11-25T08:00:00Z")
    assert not vault.has_secret()
    assert vault.token() == vault.keys.token(vault.job, vault.keys.current)


def test_the_newest_cluster_says_which_key_is_used(vault):
    children = (raycluster(10, vault.keys.current), raycluster(9), {"kind": "Service", "metadata": {"name": "s"}})
    assert asyncio.run(vault.tokens.has_secret(vault.job, children, (), None))
    assert vault.cluster.secret_reads == 0


def test_a_driver_that_refuses_the_token_has_its_secret_replaced_once_in_a_while(vault):
    vault.make()
    vault.put(f"sums-7f3a1-{vault.keys.current}", token="theirs")
    vault.now += DOUBT_S
    assert not vault.has_secret(driver=REFUSING)
    assert vault.make() == vault.token() != "theirs"
    vault.now += DOUBT_S
    vault.has_secret(driver=REFUSING)
    vault.make()
    assert len(vault.cluster.deleted) == 1, "the pods of its next RayCluster find it"


def test_the_token_of_an_older_operator_is_used_as_long_as_its_cluster_lasts(vault):
    vault.of_an_older_operator()
    assert vault.has_secret(driver=DRIVER)
    assert vault.token() == "random"
    vault.cluster.secret = None
    vault.now += LOOK_S
    assert not vault.has_secret(driver=DRIVER)
    assert vault.make() == "random"


def test_a_status_that_is_lost_does_not_lose_the_token_of_an_older_operator(vault):
    vault.of_an_older_operator()
    vault.job = job_of(raw_job())
    assert vault.has_secret()
    assert vault.token() == "random"


def test_a_secret_that_others_have_made_does_not_change_the_token_of_a_driver_that_accepts_the_known_one(vault):
    vault.of_an_older_operator()
    vault.has_secret()
    vault.put(token="theirs")
    vault.now += LOOK_S
    assert vault.has_secret(driver=DRIVER)
    assert vault.token() == "random"
    vault.now += DOUBT_S
    assert vault.has_secret(driver=REFUSING)
    assert vault.token() == "theirs"


def test_a_secret_of_an_older_operator_that_may_not_be_read_stays_until_its_cluster_is_replaced(vault):
    vault.of_an_older_operator()
    vault.cluster.may_not_read = True
    assert vault.has_secret(driver=REFUSING)
    assert vault.token() == vault.keys.token(vault.job, vault.keys.current), "the driver refuses it"
    vault.cluster.may_not_read = False
    vault.now += DOUBT_S
    assert vault.has_secret(driver=REFUSING)
    assert (vault.token(), vault.cluster.deleted) == ("random", [])


@pytest.mark.parametrize("data", [{}, {"token": "\udcff"}], ids=["no token", "no text"])
def test_a_secret_of_an_older_operator_without_a_token_is_replaced(vault, data: dict[str, Any]):
    vault.of_an_older_operator()
    vault.cluster.secret = {"data": dict.fromkeys(data, "gA=="), "metadata": {"name": "sums-7f3a1"}}
    assert not vault.has_secret()
    vault.make()
    assert [target.kind for target in vault.cluster.deleted] == ["Secret"]


@pytest.mark.parametrize("status", [{}, {"attempts": [{"number": 1}], "completionTime": "2026-11-25T08:00:00Z"}])
def test_a_job_that_has_not_begun_or_has_ended_has_no_secret_and_none_is_read(vault, status):
    vault.job = job_of({**raw_job(), "status": status})
    vault.raycluster = None
    assert not vault.has_secret()
    assert vault.cluster.secret_reads == 0


LACKING = "CreateContainerConfigError: couldn't find key toolsTokenDigest in Secret ml/sums-7f3a1"


def needing(text: str) -> Pod:
    return replace(POD, stage=PodStage(Stage.CONFIG, NOW, text))


def test_a_secret_of_an_older_operator_that_lacks_what_pods_need_is_made_again_with_its_token(vault):
    vault.of_an_older_operator()
    assert vault.has_secret()
    assert not vault.has_secret(needing(LACKING))
    assert vault.make() == "random"
    assert [target.name for target in vault.cluster.deleted] == ["sums-7f3a1"]
    assert "toolsTokenDigest" in vault.cluster.secret["data"]
    vault.now += DOUBT_S
    assert vault.has_secret(needing(LACKING)), "the kubelet looks again soon"
    vault.now += LOOK_S
    assert not vault.has_secret(needing(LACKING))


@pytest.mark.parametrize(
    "text", ["couldn't find key x in Secret ml/theirs", 'secret "sums-7f3a1" not found', "find key x in ConfigMap ml/c"]
)
def test_a_pod_that_waits_for_something_else_changes_no_secret(vault, text):
    vault.make()
    assert vault.has_secret(needing(text))
    assert vault.cluster.deleted == []


def refusing(after_s: float, is_sure: bool = False, **sections: Any) -> Surroundings:
    """Return a job whose running driver has refused the token for this time."""
    around = Surroundings(raw_job(**sections)).to_running()
    around.runs(running(step=3, checkpoint=2))
    around.step()
    around.driver(refuses_since=around.now, status=None)
    around.now += after_s
    around.driver(refused_at=around.now)
    around.observed = replace(around.observed, is_token_sure=is_sure)
    return around


def test_a_driver_that_refuses_the_token_after_a_silence_lives():
    around = Surroundings().to_running()
    around.now += 40
    around.driver(refuses_since=around.now)
    around.now += 30
    around.driver(refused_at=around.now)
    assert not around.step().orders.stop
    assert around.condition("Training")["reason"] == "Unreachable"


def test_a_driver_that_refuses_the_token_is_not_stalled_and_says_so():
    around = refusing(LOCKED_OUT_S - 1)
    around.step()
    assert around.condition("Training")["message"] == "attempt 1: the driver refuses the operator's control token"
    assert len(around.status["attempts"]) == 1
    long_ago = replace(around.observed, driver=replace(around.observed.driver, since=NOW - 1e6, beat_at=NOW - 1e6))
    job = admitted(around.raw)
    history = history_of(job.status)
    attempt = attempt_view(history.attempt, job, long_ago)
    assert advance(history, attempt, job, None, around.now).attempts[-1].verdict is None


def test_a_refusal_of_a_token_that_is_surely_right_ends_no_run():
    """A mesh or a proxy answers `403 RBAC: access denied`, too."""
    around = refusing(7 * 86400.0, is_sure=True)
    around.driver(state=DriverState.UNKNOWN)
    around.step()
    assert len(around.status["attempts"]) == 1
    assert all("deletionTimestamp" not in cluster["metadata"] for cluster in around.observed.rayclusters())


@pytest.mark.parametrize(("keys", "is_sure"), [(b"k", True), (b"n", False)], ids=["known", "lost"])
def test_a_token_is_surely_right_while_the_operator_has_the_key_of_the_pods(vault, keys, is_sure):
    vault.keys = Keys.of(keys * 32)
    vault.restart()
    vault.has_secret()
    assert vault.tokens.is_sure(vault.job) is is_sure


def test_a_head_whose_ray_refuses_the_token_gets_a_new_cluster_too():
    around = refusing(LOCKED_OUT_S)
    around.driver(state=DriverState.UNKNOWN)
    around.step()
    assert [attempt["cluster"] for attempt in around.status["attempts"]] == ["sums-7f3a1-1", "sums-7f3a1-2"]


def test_a_driver_that_refuses_the_token_for_long_gets_a_new_cluster_and_keeps_its_budget_of_failures():
    around = refusing(LOCKED_OUT_S)
    todo = around.step()
    first, second = around.status["attempts"]
    assert (first["exitCode"], first["cause"], second["cluster"]) == (7, "Infrastructure", "sums-7f3a1-2")
    assert "refuses the token of Secret sums-7f3a1" in first["reason"]
    assert ("RayCluster", "sums-7f3a1-1") in [(target.kind, target.name) for target in todo.delete]
    assert not todo.orders.stop, "the pods' hooks let it save"
    assert [event.reason for event in todo.events if event.reason == "DeleteCluster"]
