"""Argo CD's ConfigMap in the examples carries the scripts that are tested."""

from support.operator.argocd_settings import carried, scripts


def test_the_configmap_carries_the_tested_scripts():
    assert carried() == scripts()
