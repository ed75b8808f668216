"""How long `rljob doctor` takes for a large log, for `docs/performance.md`.

python benchmarks/doctor.py --gigabytes 1
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Final

from rljob_cli.doctor.logs import scanned
from rljob_doctor.catalogue import catalogue
from rljob_doctor.scan import scan

HEALTHY = """\
(SGLangEngine pid=811) [2026-03-04 10:25:31 TP0] Decode batch, #running-req: 52, #token: 40112, #queue-req: 0
(MegatronTrainRayActor pid=818) step 12: {'train/loss': 0.0031, 'train/grad_norm': 0.4127, 'train/step': 12}
(SGLangEngine pid=811) [2026-03-04 10:25:31] INFO:     10.0.0.2:51110 - "POST /generate HTTP/1.1" 200 OK
2026-03-04 10:25:31,123 INFO rljob_trainer.sync.publisher action=publish version=4 engines=2 seconds=0.512 errors=0
"""
SERVER_ARGS = """\
[2026-03-04 10:20:01] server_args=ServerArgs(model_path='/models/Qwen3-4B', tokenizer_path='/models/Qwen3-4B', \
tokenizer_mode='auto', load_format='auto', trust_remote_code=False, context_length=None, is_embedding=False, \
enable_multimodal=None, revision=None, host='0.0.0.0', port=15000, skip_server_warmup=False, dtype='auto', \
quantization=None, quantization_param_path=None, kv_cache_dtype='auto', mem_fraction_static=0.8, \
max_running_requests=None, max_total_tokens=None, chunked_prefill_size=8192, max_prefill_tokens=16384, \
schedule_policy='fcfs', cpu_offload_gb=0, page_size=1, device='cuda', tp_size=1, pp_size=1, max_micro_batch_size=None, \
stream_interval=1, random_seed=7, watchdog_timeout=300, dist_timeout=None, download_dir=None, log_level='error', \
crash_dump_folder=None, show_time_cost=False, enable_metrics=True, decode_log_interval=40, reasoning_parser=None, \
tool_call_parser=None, dp_size=1, load_balance_method='round_robin', dist_init_addr='10.0.0.7:15001', nnodes=1, \
node_rank=0, lora_paths=None, max_loras_per_batch=8, attention_backend='fa3', sampling_backend='flashinfer', \
grammar_backend='xgrammar', speculative_algorithm=None, speculative_draft_model_path=None, speculative_num_steps=None, \
ep_size=1, enable_deepep_moe=False, deepep_mode='auto', disable_radix_cache=False, cuda_graph_max_bs=256, \
disable_cuda_graph=False, enable_nccl_nvls=False, disable_custom_all_reduce=False, enable_memory_saver=True, \
allow_auto_truncate=False, flashinfer_mla_disable_ragged=False, disaggregation_mode='null', \
disaggregation_transfer_backend='mooncake', disaggregation_ib_device=None, quant_method=None, \
weight_loader_disable_mmap=False, custom_weight_loader=[])
"""
"""what an SGLang engine writes at its start, with most options of its version, several of them texts of signatures"""
NAMES = (
    "loss", "pg_loss", "entropy_loss", "pg_clipfrac", "ppo_kl", "train_rollout_logprob_abs_diff", "kl_loss",
    "grad_norm", "lr-pg_0", "lr-pg_1", "step",
)  # fmt: skip
STEP = (
    f"(MegatronTrainRayActor pid=818) step 12: { {f'train/{each}': 0.00314159 * n for n, each in enumerate(NAMES)} }\n"
)
"""a step of slime"""
VERL = (
    "(TaskRunner pid=36) step:2 - "
    + " - ".join(f"actor/{name}:{0.00407 * n:.3f}" for n, name in enumerate(NAMES))
    + "\n"
)
MEGATRON = "".join(
    f"  {name} {'.' * (40 - len(name))} 1\n" for name in (*NAMES, "global_batch_size", "micro_batch_size")
)
"""the arguments of Megatron"""
KINDS = {
    "server_args of SGLang": SERVER_ARGS,
    "step of slime": STEP,
    "step of verl": VERL,
    "arguments of Megatron": MEGATRON,
}
KIND: Final = 20_000_000
"""bytes of each kind of lines"""


def main() -> None:
    """Print the time of a scan of a healthy log with each known failure at its end, and of kinds of lines alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    size = int(parser.parse_args().gigabytes * 1e9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        block = HEALTHY.encode() * 10_000
        with path.open("wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
            for failure in catalogue().values():
                file.write(f"{failure.example}\n".encode())
        began = time.process_time()
        result = scanned(path, "run.log")
        seconds = time.process_time() - began
    speed = result.size / 1e6 / seconds
    print(f"{result.size / 1e9:.2f} GB, {result.lines:,} lines: {seconds:.1f} s of one core, {speed:.0f} MB/s")
    print(f"{len(result.found)} failures found")
    for name, lines in KINDS.items():
        data = lines.encode() * (KIND // len(lines))
        began = time.process_time()
        scan(name, data)
        print(f"{name}: {len(data) / 1e6 / (time.process_time() - began):.0f} MB/s")


if __name__ == "__main__":
    main()
