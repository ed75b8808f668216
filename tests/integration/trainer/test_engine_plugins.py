"""SGLang's plugins of rljob, found and applied by SGLang itself."""

import json
import os
import subprocess
import sys

from rljob_trainer.engines.command import CPU_SITE, GPU_SITE

RELEASED = """
import json
from types import SimpleNamespace

import torch
from sglang.srt.managers.io_struct import ReleaseMemoryOccupationReqInput
from sglang.srt.plugins import load_plugins

load_plugins()
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

seen = []
torch.cuda.synchronize = lambda *_: seen.append("wait")
engine = SchedulerWeightUpdaterManager(
    tp_worker=None, draft_worker=None, tp_cpu_group=None, flush_cache=lambda **_: True, is_fully_idle=lambda: True,
    memory_saver_adapter=SimpleNamespace(pause=seen.append),
)
engine.release_memory_occupation(ReleaseMemoryOccupationReqInput(tags=["kv_cache"]))
print(json.dumps(seen))
"""


def released(*sites: object) -> list[str]:
    """Return what an engine does when it gives back the memory of its KV cache, with these sites on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sites)), "SGLANG_USE_CPU_ENGINE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", RELEASED], env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found: list[str] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_an_engine_on_a_gpu_waits_for_its_kernels_before_it_gives_memory_back() -> None:
    assert released(CPU_SITE)[0] == "kv_cache"  # else the plugin can go
    assert released(GPU_SITE, CPU_SITE)[:2] == ["wait", "kv_cache"]
