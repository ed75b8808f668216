"""Where compilers of GPU kernels keep what they have compiled, in pods.

Each pod has its own directories: processes that share one would read files that another is writing. What engines and
the learner have compiled is kept in the run directory as one archive, for pods that start later.
"""

from collections.abc import Mapping

DIRECTORY_VARIABLE = "RLJOB_KERNELS"
"""environment variable: the directory of the machine that is kept"""
DIRECTORY = "/tmp/kernels"

ENVIRONMENT: Mapping[str, str] = {
    DIRECTORY_VARIABLE: DIRECTORY,
    "TRITON_CACHE_DIR": f"{DIRECTORY}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{DIRECTORY}/inductor",
    "TVM_FFI_CACHE_DIR": f"{DIRECTORY}/tvm-ffi",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": f"{DIRECTORY}/flash-attention",
    "FLASHINFER_WORKSPACE_BASE": f"{DIRECTORY}/flashinfer",
}
"""of a pod"""
