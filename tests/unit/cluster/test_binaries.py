"""Where programs come from."""

import os
from pathlib import Path

import pytest

from local_cluster.binaries import MODULES, PROGRAMS, binary, cache, cache_key, link_flags
from local_cluster.errors import ClusterError


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_every_program_is_a_tool_of_its_module_with_committed_sums(name: str) -> None:
    program = PROGRAMS[name]
    assert program.package in (MODULES / program.module / "go.mod").read_text().split()
    assert (MODULES / program.module / "go.sum").stat().st_size > 0


def test_another_dependency_or_other_code_is_another_directory() -> None:
    assert cache_key(b"a 1", b"sum") != cache_key(b"a 2", b"sum") != cache_key(b"a 2", b"mus")
    assert cache_key(b"a 1", b"sum", b"package main") != cache_key(b"a 1", b"sum")


def test_kubernetes_programs_get_the_version_of_their_module() -> None:
    go_mod = (MODULES / "kubernetes" / "go.mod").read_text()
    assert "gitVersion=v1.34.4" in link_flags("k8s.io/kubernetes", go_mod)
    assert "gitMajor=1 " in link_flags("k8s.io/kubernetes", go_mod)


def test_a_module_that_does_not_require_what_names_its_version_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"requires no k8s\.io/kubernetes"):
        link_flags("k8s.io/kubernetes", "require k8s.io/api v0.34.4\n")


def test_the_cache_is_where_the_variable_says(tmp_path: Path) -> None:
    assert cache({"RLJOB_CACHE": str(tmp_path)}) == tmp_path / "cluster"


def test_assets_of_kubebuilder_are_preferred(tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()
    assert binary("etcd", {"KUBEBUILDER_ASSETS": str(tmp_path)}) == tmp_path / "etcd"


def test_assets_without_the_program_are_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="has no kube-apiserver; install it"):
        binary("kube-apiserver", {"KUBEBUILDER_ASSETS": str(tmp_path)})


def test_without_go_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no `go` on PATH.*KUBECONFIG"):
        binary("etcd", {"RLJOB_CACHE": str(tmp_path), "PATH": str(tmp_path)})


def test_a_failed_build_leaves_nothing_and_shows_what_go_said(tmp_path: Path) -> None:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho no such package >&2\nexit 3\n")
    go.chmod(0o755)
    with pytest.raises(ClusterError, match="failed with 3:\nno such package"):
        binary("etcd", {"RLJOB_CACHE": str(tmp_path), "PATH": f"{go.parent}{os.pathsep}{os.environ['PATH']}"})
    assert list((tmp_path / "cluster").rglob("etcd")) == []
