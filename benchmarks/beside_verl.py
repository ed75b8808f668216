"""The steps of the row `whole` of `gpu_runs.py`, by verl with FSDP and SGLang on one GPU: docs/gpu-measurements.md.

    python3 benchmarks/gpu_runs.py --rows whole
    python3 benchmarks/beside_verl.py runs/bench-gpu/model-0.6B

Needs verl 0.9.1, which has pins of its own: run it in an environment of its own. The same model, questions, reward,
lengths, batch and learning rate; verl is set up as for speed: FSDP2, no padding, micro-batches by tokens, log-probs of
the engine as those of the old policy, nothing recomputed or offloaded, no KL and no reference.

Three things differ from verl as it is delivered. It looks every 2 s whether a rollout is complete; here every 0.05 s.
It picks a prompt builder for Qwen3 that insists on a token for the end of a line, which the model of numbers lacks;
here it has the general one. It has no setting for SGLang's `ignore_eos`; here it is SGLang's default.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pandas

PROMPTS, SAMPLES, TOKENS, STEPS, WARM_UP = 32, 8, 256, 14, 3
QUESTIONS = 512
CODE = """
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.tokenizer import continuous_token_wiring

continuous_token_wiring._MODEL_TYPE_TO_FAMILY.pop("qwen3", None)


class QuickReplayBuffer(ReplayBuffer):
    def __init__(self, **settings):
        super().__init__(poll_interval=0.05, **settings)


def even(data_source, solution_str, ground_truth, extra_info=None, **others):
    return float(sum(map(ord, solution_str)) % 2)
"""
"""what verl imports from OUT/beside_verl_hooks.py"""
SETTINGS: dict[str, object] = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": False,
    "algorithm.rollout_correction.bypass_mode": True,
    "data.train_batch_size": PROMPTS,
    "data.max_prompt_length": 64,
    "data.max_response_length": TOKENS,
    "data.filter_overlong_prompts": False,
    "data.shuffle": False,
    "data.dataloader_num_workers": 0,
    "actor_rollout_ref.model.external_lib": "beside_verl_hooks",
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    "+actor_rollout_ref.model.override_config.attn_implementation": "flash_attention_2",
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.fsdp_config.reshard_after_forward": False,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "+actor_rollout_ref.actor.optim.override_optimizer_config.fused": True,
    "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 16384,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.rollout.name": "sglang",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.n": SAMPLES,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.top_p": 1.0,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.5,
    "actor_rollout_ref.rollout.max_num_seqs": PROMPTS * SAMPLES,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend": "triton",
    "+actor_rollout_ref.rollout.engine_kwargs.sglang.sampling_backend": "pytorch",
    "+actor_rollout_ref.rollout.engine_kwargs.sglang.cuda_graph_max_bs_decode": PROMPTS * SAMPLES,
    "+actor_rollout_ref.rollout.engine_kwargs.sglang.preferred_sampling_params": r'"{\"ignore_eos\": true}"',
    "reward.custom_reward_function.name": "even",
    "trainer.n_gpus_per_node": 1,
    "trainer.nnodes": 1,
    "trainer.logger": "[console]",
    "trainer.val_before_train": False,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
    "trainer.resume_mode": "disable",
    "trainer.total_epochs": 100,
    "trainer.total_training_steps": STEPS,
    "trainer.v1.sampler.custom_sampler.name": "QuickReplayBuffer",
    "ray_kwargs.ray_init.num_cpus": 32,
}
FIGURE = re.compile(r"(\S+):(?:np\.\w+\()?(-?\d[\d.]*(?:e[+-]?\d+)?)\)?")


def settings(model: Path, out: Path, *, liger: bool) -> list[str]:
    """Return verl's settings; `out` has the files of `prepare`."""
    hooks, questions = out / "beside_verl_hooks.py", out / "numbers.parquet"
    own: dict[str, object] = {
        "data.train_files": questions,
        "data.val_files": questions,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.model.use_liger": liger,
        "reward.custom_reward_function.path": hooks,
        "trainer.v1.sampler.custom_sampler.path": hooks,
    }
    return [f"{name}={value}" for name, value in (SETTINGS | own).items()]


def prepare(model: Path, out: Path) -> Path:
    """Write questions and hooks; return a directory of the model's files with a chat template that changes nothing."""
    rows = [
        {
            "data_source": "numbers",
            "prompt": [{"role": "user", "content": f"{number % 97} {number}"}],
            "reward_model": {"style": "rule", "ground_truth": "1"},
            "extra_info": {"index": number},
        }
        for number in range(QUESTIONS)
    ]
    out.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(rows).to_parquet(out / "numbers.parquet")
    (out / "beside_verl_hooks.py").write_text(CODE)
    copy = out / "model"
    copy.mkdir(exist_ok=True)
    for file in model.resolve().iterdir():
        if not (copy / file.name).is_symlink():
            (copy / file.name).symlink_to(file)
    (copy / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    return copy


def steps(log: str) -> list[dict[str, float]]:
    """Return the figures of each step that verl's console shows."""
    found = re.findall(r"\bstep:\d+ - (.*)", re.sub(r"\x1b\[[0-9;]*m", "", log))
    return [{name: float(value) for name, value in FIGURE.findall(line)} for line in found]


def main() -> None:
    """Run verl and print medians after the first steps, with the smallest and largest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/beside-verl"))
    parser.add_argument("--liger", action="store_true", help="its kernel of RoPE is compiled again for each new length")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    model = prepare(arguments.model, out)
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *settings(model, out, liger=arguments.liger)]
    environment = os.environ | {"PYTHONPATH": f"{out}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with (out / "log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, cwd=out, env=environment, check=True)
    counted = steps((out / "log").read_text(errors="replace"))[WARM_UP:]
    names = [name for name in counted[0] if name.startswith(("timing_s/", "response_length/"))]
    for name in names:
        values = [step[name] for step in counted if name in step]
        print(json.dumps({name: [round(each, 3) for each in (median(values), min(values), max(values))]}))


if __name__ == "__main__":
    main()
