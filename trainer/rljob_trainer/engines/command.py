"""From the manifest to the command line and environment of one SGLang server. Pure.

Ports and host are not known here: they belong to the machine that the server will run on, see `actor/server.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_api.control import CORES
from rljob_api.facts import values
from rljob_api.rules.arguments import sglang_command_line
from rljob_api.sections import Device, Placement, Precision, Replay, Spec
from rljob_trainer.processes.kernel_archive import archive_of

CPU_SITE = Path(__file__).parent / "inside" / "cpu"
GPU_SITE = Path(__file__).parent / "inside" / "gpu"
ANY_SITE = Path(__file__).parent / "inside" / "any"
"""go on PYTHONPATH of SGLang processes on CPUs, on GPUs, and on both, and of nothing else"""
NCCL = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
"""SGLang sets both in itself; when they differ between learner and engine the first broadcast hangs for ever"""
NOTHING_COMPILED = {"TORCHDYNAMO_DISABLE": "1"}
"""on a CPU, where nothing is compiled by torch: to be ready for it takes each process a second"""
BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "CUDA_COREDUMP_SHOW_PROGRESS": "1"}
"""an error then names its own kernel; the progress of a core dump is in the log of its process"""
WITHOUT_MEMORY = "skip_global_memory,skip_shared_memory,skip_local_memory"
"""CUDA_COREDUMP_GENERATION_FLAGS: registers and stacks name the kernel, and the memory of a GPU would fill a disk"""
GRAPHS = "cuda-graph"
CHOICES = "enable-return-routed-experts"
"""every answer then says which experts its tokens were sent to"""
MOST_IN_GRAPH = 512
"""responses; what SGLang records at most by itself, on a GPU with more than 80 GB"""
DTYPES = {Precision.FP32: "float32", Precision.BF16: "bfloat16"}

Argument = str | int | float | bool | list[Any]


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How to start an engine, but for its host and ports."""

    arguments: Mapping[str, Argument]
    """SGLang's server arguments by name; True stands for a bare flag, False for its absence"""
    environment: Mapping[str, str]
    kernels: Path | None = None
    """archive of compiled kernels, see `kernel_archive`; None: they are not kept"""
    key: str = field(default="", repr=False)
    """that requests must carry; empty: no key is needed"""
    starter: tuple[str, ...] = ()
    """module that runs SGLang's, with its arguments; empty: none is needed"""

    def argv(self, python: str, host: str, port: int, nccl_port: int) -> list[str]:
        """Return the command line."""
        arguments = {**self.arguments, "host": host, "port": port, "nccl-port": nccl_port}
        return [python, "-m", *self.starter, "sglang.launch_server", *sglang_command_line(arguments)]


def engine_command(
    spec: Spec,
    model: Path,
    threads: int,
    python_path: str = "",
    directory: Path = Path(),
    quantization_config: Mapping[str, Any] | None = None,
) -> EngineCommand:
    """Return how to start an engine that serves the Hugging Face checkpoint in `model` with `threads` CPU threads.

    `python_path` is the PYTHONPATH to keep, `directory` the run's. With a `quantization_config` the engine has room for
    quantised weights, and none yet. What `extraArgs.sglang` may not set, the manifest's rules have refused.
    """
    on_cpu = spec.runtime.device is Device.CPU
    device = _cpu_arguments(spec) if on_cpu else _gpu_arguments(spec)
    environment = _cpu_environment(threads, python_path) if on_cpu else _gpu_environment(threads, python_path)
    environment |= cuda_debugging(spec, directory)
    arguments = _arguments(spec, model) | device | _quantised(quantization_config) | spec.extra_args.sglang
    starter = () if on_cpu else _starter(arguments)
    return EngineCommand(arguments, environment, archive_of(directory, spec.runtime.device), starter=starter)


def cuda_debugging(spec: Spec, directory: Path) -> dict[str, str]:
    """Return the variables of ranks and engines by which a kernel that fails is found; empty: not requested.

    Core dumps go below the run's `directory`, one for each process (%h: host, %p: pid).
    Source: CUDA-GDB, "GPU core dump support".
    """
    if not spec.debug.cuda_launch_blocking:
        return {}
    file = directory / CORES / "%h-%p.core"
    flags = {"CUDA_COREDUMP_GENERATION_FLAGS": WITHOUT_MEMORY}
    chosen = {name: value for name, value in flags.items() if name not in spec.runtime.env}
    return BLOCKING | {"CUDA_COREDUMP_FILE": str(file)} | chosen


def _largest_batch(spec: Spec) -> int:
    """Return how many responses a rollout or an evaluation asks for at once, at most MOST_IN_GRAPH.

    They may all be one engine's: the others can fail. Questions without a limit are taken for many.
    """
    rollout = spec.rollout.prompts_per_step * spec.rollout.samples_per_prompt
    held_out = [(spec.data.held_out, spec.evaluation.samples_per_prompt)] if spec.data.held_out else []
    sets = [(each, each.samples_per_prompt or spec.evaluation.samples_per_prompt) for each in spec.data.evaluation_sets]
    measured = [(each.limit or MOST_IN_GRAPH) * samples for each, samples in (*held_out, *sets)]
    return min(max([rollout, *measured]), MOST_IN_GRAPH)


def _arguments(spec: Spec, model: Path) -> dict[str, Argument]:
    arguments: dict[str, Argument] = {
        **values(spec, "sglang"),
        "model-path": str(model),
        "dtype": DTYPES[spec.training.precision],
        "sampling-backend": "pytorch",
        "enable-metrics": True,
        "log-level": "info",
        "log-level-http": "warning",
    }
    if spec.training.experts.replay is Replay.ROLLOUT:
        arguments[CHOICES] = True
    if spec.rollout.agent is not None:
        arguments["incremental-streaming-output"] = True  # a stream of T tokens would have T * T log-probabilities
    if (tokens := spec.rollout.kv_tokens(spec.runtime.device)) is not None:
        arguments["max-total-tokens"] = tokens
    return arguments


def _quantised(config: Mapping[str, Any] | None) -> dict[str, Argument]:
    """Return what makes room for quantised weights. The first publication brings them: no file has to hold them."""
    if config is None:
        return {}
    changes = {"quantization_config": config}
    return {"load-format": "dummy", "json-model-override-args": json.dumps(changes)}


def _cpu_arguments(spec: Spec) -> dict[str, Argument]:
    return {
        "device": "cpu",
        "attention-backend": "torch_native",  # the only one that needs no kernel package
        "disable-overlap-schedule": True,  # there is nothing to overlap: it costs one decoding step in vain, 25 % at 5
        "sleep-on-idle": True,  # an idle scheduler burns a whole core otherwise
        "skip-server-warmup": True,  # it warms nothing on a CPU; the first publication comes before the first request
    }


def _gpu_arguments(spec: Spec) -> dict[str, Argument]:
    return {
        "device": "cuda",
        "attention-backend": "triton",
        "disable-shared-experts-fusion": True,  # it would be one tensor with the other experts: see sync/layout.py
        "enable-memory-saver": spec.placement is Placement.COLOCATED,  # the learner needs the memory
        **_graphs(spec),
    }


def _starter(arguments: Mapping[str, Argument]) -> tuple[str, ...]:
    """Return what starts SGLang's processes side by side; it is in GPU_SITE."""
    memory_saver = ("--memory-saver",) if arguments.get("enable-memory-saver") else ()
    return ("rljob_sglang_start", str(arguments.get("tp-size", 1)), *memory_saver)


def _graphs(spec: Spec) -> dict[str, Argument]:
    """Return the largest batch with a CUDA graph: larger ones run without, and fewer graphs start faster.

    SGLang's own choice follows the size of the GPU. An error within a graph names no kernel.
    """
    if spec.debug.cuda_launch_blocking:
        return {f"disable-{GRAPHS}": True}
    if any(name.startswith(GRAPHS) for name in spec.extra_args.sglang):
        return {}
    return {f"{GRAPHS}-max-bs-decode": _largest_batch(spec)}


def _cpu_environment(threads: int, python_path: str) -> dict[str, str]:
    device = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": _with(CPU_SITE, python_path),
    }
    return _environment(threads) | NOTHING_COMPILED | device


def _gpu_environment(threads: int, python_path: str) -> dict[str, str]:
    return _environment(threads) | NCCL | {"PYTHONPATH": _with(GPU_SITE, python_path)}


def _with(site: Path, python_path: str) -> str:
    return f"{site}:{ANY_SITE}:{python_path}".rstrip(":")


def _environment(threads: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "",  # SGLang's three processes would compile 2,000 modules at every start: 15 s each
        # SGLang asks itself for a first answer, and a proxy of the machine would be asked instead
        "NO_PROXY": "*",
        "no_proxy": "*",
        # /health only says that the server answers; a paused engine must not look ill to the router
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    }
