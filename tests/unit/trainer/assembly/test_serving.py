"""Where the driver listens."""

import pytest

from rljob_api.reading.manifest import parse
from rljob_trainer.assembly.serving import Address, metrics_port
from support.trainer.whole_run import manifest


@pytest.mark.parametrize(("named", "port"), [(0, 8644), (9100, 9100)])
def test_the_manifest_s_metrics_port_goes_before_the_one_of_the_command_line(named, port, tmp_path):
    spec = parse(manifest(tmp_path, tmp_path, runtime={"metricsPort": named})).spec
    assert metrics_port(spec, Address("0.0.0.0", 8643, metrics_port=8644)) == port
