"""A namespace with the operator's rights in it, fake heads, and operators that are gone when the test ends."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from local_cluster.kubectl import Kubectl
from support.operator.fake_head import FakeHeads, serving
from support.operator.operator_job import Job
from support.operator.operator_process import MODULE, OperatorProcess, install_rights, kubeconfig_of_operator
from support.operator.webhook_process import WebhookProcess

Start = Callable[..., OperatorProcess]


@pytest.fixture
def new_job(kubectl: Kubectl, namespace: str) -> Callable[..., Job]:
    """Apply an RLJob."""
    return lambda *given, **sections: Job(kubectl, namespace, *given, **sections)


POLICIES = "validatingadmissionpolicy,validatingadmissionpolicybinding"


@pytest.fixture
def heads() -> FakeHeads:
    return FakeHeads()


@pytest.fixture
def chart_values() -> tuple[str, ...]:
    """Further values of the chart, for modules whose operators have more rights."""
    return ()


@pytest.fixture
def kubeconfig(kubectl: Kubectl, namespace: str, chart_values: tuple[str, ...], tmp_path: Path) -> Iterator[Path]:
    """Of the operator's ServiceAccount, with the chart's rules for this namespace and the operator's policy."""
    values = f"namespaces={{{namespace}}},operatorPolicy.enabled=true"
    install_rights(kubectl, namespace, "--set", values, *chart_values)
    yield kubeconfig_of_operator(kubectl, namespace, tmp_path)
    kubectl("delete", POLICIES, f"{namespace}-operator-own")


@pytest.fixture
def webhook(kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[WebhookProcess]:
    """Run the webhook, for the jobs of this namespace."""
    with closing(WebhookProcess(kubectl, namespace, tmp_path)) as process:
        process.until_ready()
        yield process


@pytest.fixture
def start(kubeconfig: Path, namespace: str, heads: FakeHeads, tmp_path: Path) -> Iterator[Start]:
    """Start replicas of the operator."""
    with ExitStack() as stack:
        url = stack.enter_context(serving(heads))

        def started(
            name: str = "operator",
            program: tuple[str, ...] = MODULE,
            identity: str | None = None,
            more: tuple[str, ...] = (),
        ) -> OperatorProcess:
            log = tmp_path / f"{name}.log"
            operator = OperatorProcess(kubeconfig, namespace, url, log, program, identity, more=more)
            return stack.enter_context(operator)

        yield started
