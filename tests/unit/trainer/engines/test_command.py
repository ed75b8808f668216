import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rljob_api.sections import RLJob, Spec
from rljob_trainer.assembly.settings import learner_environment
from rljob_trainer.engines.command import ANY_SITE, CPU_SITE, GPU_SITE, engine_command


def spec(**sections: Any) -> Spec:
    manifest = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "job"},
        "spec": {
            "model": {"checkpoint": "/models/tiny"},
            "data": {"train": {"jsonl": "questions.jsonl"}},
            "reward": {"kind": "ExactMatch"},
            "rollout": {"promptsPerStep": 2, "sampling": {"maxNewTokens": 8}, **sections.pop("rollout", {})},
            "training": {"steps": 1, "precision": "fp32", "optimizer": {"learningRate": 1e-5}},
            **sections,
        },
    }
    return RLJob.model_validate(manifest).spec


def words(job: Spec) -> str:
    return " ".join(engine_command(job, Path("/models/tiny"), threads=2).argv("python", "127.0.0.1", 21000, 21001))


def test_on_a_cpu_an_idle_engine_sleeps_and_needs_no_kernels() -> None:
    line = words(spec(runtime={"device": "Cpu"}))
    assert "--device cpu --attention-backend torch_native" in line
    assert "--disable-overlap-schedule --sleep-on-idle" in line
    assert "--max-total-tokens 8192" in line


def test_on_gpus_an_engines_processes_start_side_by_side() -> None:
    apart = spec(placement="Disaggregated", rollout={"gpusPerEngine": 2})
    assert words(spec(placement="Colocated")).startswith(
        "python -m rljob_sglang_start 1 --memory-saver sglang.launch_server --"
    )
    assert words(apart).startswith("python -m rljob_sglang_start 2 sglang.launch_server --")
    assert words(spec(runtime={"device": "Cpu"})).startswith("python -m sglang.launch_server --")


def test_an_engine_sees_the_plugins_of_its_device_only() -> None:
    on_cpu = engine_command(spec(runtime={"device": "Cpu"}), Path("/m"), 2, python_path="/mine").environment
    on_gpu = engine_command(spec(), Path("/m"), 2, python_path="/mine").environment
    assert on_cpu["PYTHONPATH"] == f"{CPU_SITE}:{ANY_SITE}:/mine"
    assert on_gpu["PYTHONPATH"] == f"{GPU_SITE}:{ANY_SITE}:/mine"
    assert engine_command(spec(), Path("/m"), 2).environment["PYTHONPATH"] == f"{GPU_SITE}:{ANY_SITE}"


def test_a_key_is_in_no_command_line_and_not_shown() -> None:
    command = replace(engine_command(spec(), Path("/m"), 2), key="a key")
    assert "a key" not in " ".join(command.argv("python", "127.0.0.1", 21000, 21001))
    assert "a key" not in repr(command)


def test_kernels_are_kept_in_the_run_directory_on_gpus() -> None:
    assert engine_command(spec(), Path("/m"), 2, directory=Path("/run")).kernels == Path("/run/kernels/kernels.tar")
    assert engine_command(spec(runtime={"device": "Cpu"}), Path("/m"), 2, directory=Path("/run")).kernels is None


def test_on_a_gpu_a_colocated_engine_can_give_back_its_memory() -> None:
    assert "--attention-backend triton --disable-shared-experts-fusion --enable-memory-saver" in words(
        spec(placement="Colocated")
    )
    assert "--enable-memory-saver" not in words(spec(placement="Disaggregated"))


def test_engine_and_learner_agree_on_the_settings_of_nccl() -> None:
    environment = engine_command(spec(), Path("/m"), 2).environment
    learner = learner_environment(spec(), Path("/runs/x"))["runtime_env"]["env_vars"]
    assert learner == {name: environment[name] for name in ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")}
    assert learner["NCCL_CUMEM_ENABLE"] == "0", "SGLang sets it, and NCCL hangs when two ranks differ"


def test_what_the_manifest_says_reaches_the_engine() -> None:
    line = words(
        spec(rollout={"gpusPerEngine": 2, "contextLength": 512, "memoryFraction": 0.7, "maxTotalTokens": 9000})
    )
    assert "--tp-size 2" in line
    assert "--context-length 512 --mem-fraction-static 0.7 --max-total-tokens 9000" in line
    assert "--dtype float32" in line


def test_cuda_graphs_reach_the_largest_batch_of_a_run() -> None:
    def graphs(sections: dict[str, Any]) -> list[str]:
        return re.findall(r"--cuda-graph-\S+ [\w ]+?(?= --|$)", words(spec(**sections)))

    rollout = {"promptsPerStep": 25, "samplesPerPrompt": 4}
    questions = {"jsonl": "questions.jsonl"}
    held_out = {"train": questions, "heldOut": questions | {"limit": 70}}
    sets = held_out | {"evaluationSets": [questions | {"name": "hard", "limit": 30, "samplesPerPrompt": 8}]}
    assert graphs({"rollout": rollout}) == ["--cuda-graph-max-bs-decode 100"]
    assert graphs({"rollout": rollout | {"promptsPerStep": 128}}) == ["--cuda-graph-max-bs-decode 512"]
    assert graphs({"rollout": rollout | {"promptsPerStep": 129}}) == ["--cuda-graph-max-bs-decode 512"]
    assert graphs({"rollout": rollout, "data": held_out}) == ["--cuda-graph-max-bs-decode 100"]
    sampled = {"evaluation": {"samplesPerPrompt": 2}}
    assert graphs({"rollout": rollout, "data": held_out} | sampled) == ["--cuda-graph-max-bs-decode 140"]
    assert graphs({"rollout": rollout, "data": sets} | sampled) == ["--cuda-graph-max-bs-decode 240"]
    unlimited = {"train": questions, "heldOut": questions}
    assert graphs({"rollout": rollout, "data": unlimited}) == ["--cuda-graph-max-bs-decode 512"]
    own = {"extraArgs": {"sglang": {"cuda-graph-bs-decode": [1, 2]}}}
    assert graphs({"rollout": rollout} | own) == ["--cuda-graph-bs-decode 1 2"]
    assert graphs({"rollout": rollout, "runtime": {"device": "Cpu"}}) == []


def test_the_server_listens_at_its_address() -> None:
    assert words(spec()).endswith("--host 127.0.0.1 --port 21000 --nccl-port 21001")


def test_further_arguments_win_over_ours() -> None:
    extra = {"sglang": {"sleep-on-idle": False, "chunked-prefill-size": 4096, "cuda-graph-bs": [1, 2]}}
    line = words(spec(runtime={"device": "Cpu"}, extraArgs=extra))
    assert "--sleep-on-idle" not in line
    assert "--chunked-prefill-size 4096 --cuda-graph-bs 1 2" in line


BLOCKING = {"cudaLaunchBlocking": True}
FINDS_A_KERNEL = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
    "CUDA_COREDUMP_SHOW_PROGRESS": "1",
    "CUDA_COREDUMP_FILE": "/runs/x/cores/%h-%p.core",
    "CUDA_COREDUMP_GENERATION_FLAGS": "skip_global_memory,skip_shared_memory,skip_local_memory",
}


def test_the_settings_that_find_a_kernel_reach_engines_and_ranks() -> None:
    page = (Path(__file__).parents[4] / "docs" / "debugging.md").read_text()
    _, _, after = page.partition("## Find the kernel of an illegal memory access")
    job = spec(**yaml.safe_load(after.partition("```yaml")[2].partition("```")[0])["spec"])
    engine = engine_command(job, Path("/m"), 2, directory=Path("/runs/x")).environment
    rank = learner_environment(job, Path("/runs/x"))["runtime_env"]["env_vars"]
    assert (engine.items() & FINDS_A_KERNEL.items(), rank.items() & FINDS_A_KERNEL.items()) == (
        FINDS_A_KERNEL.items(),
        FINDS_A_KERNEL.items(),
    )
    assert rank["NCCL_CUMEM_ENABLE"] == engine["NCCL_CUMEM_ENABLE"] == "0"
    assert "--disable-cuda-graph" in words(job)
    assert "--cuda-graph" not in words(job)


def test_without_the_field_nothing_slows_engines_and_ranks_down() -> None:
    names = (
        engine_command(spec(), Path("/m"), 2).environment.keys()
        | learner_environment(spec(), Path())["runtime_env"]["env_vars"].keys()
    )
    assert names & FINDS_A_KERNEL.keys() == set()
    assert "--disable-cuda-graph" not in words(spec())
    assert learner_environment(spec(runtime={"device": "Cpu"}), Path()) == {}


def test_a_manifest_may_keep_more_of_a_gpu_in_its_core_dump() -> None:
    flags = {"CUDA_COREDUMP_GENERATION_FLAGS": "skip_global_memory"}
    job = spec(debug=BLOCKING, runtime={"env": flags})
    assert "CUDA_COREDUMP_GENERATION_FLAGS" not in engine_command(job, Path("/m"), 2).environment


def test_an_engine_in_fp8_makes_room_for_the_weights_and_reads_none() -> None:
    config = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}
    command = engine_command(spec(), Path("/models/tiny"), threads=2, quantization_config=config)
    assert command.arguments["load-format"] == "dummy"
    changed = command.arguments["json-model-override-args"]
    assert isinstance(changed, str) and json.loads(changed) == {"quantization_config": config}


def test_without_quantization_an_engine_reads_its_checkpoint() -> None:
    assert not {"load-format", "json-model-override-args"} & engine_command(spec(), Path("/m"), 2).arguments.keys()
