"""`make image-gpu`: build the trainer's image for GPUs, list its layers, and import its packages.

It needs no GPU: packages whose import opens the driver's library are not imported.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from local_cluster import packages
from local_cluster.errors import ClusterError
from local_cluster.project_images import GPU_TRAINER, built, run

IMPORTS = (
    "flash_attn.cute",
    "flashinfer",
    "mbridge",
    "megatron.core",
    "ray",
    "rljob_trainer.driver",
    "sglang.srt.entrypoints.http_server",
    "sglang_router",
    "torch",
    "triton",
)
LONGEST = 90
"""characters of a layer's command"""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an image, from the base up."""

    size: int
    """uncompressed [bytes]"""
    made_by: str


def main() -> int:
    """Print the layers and the result of each import; return the exit code."""
    try:
        packages.install(os.environ)
        with built(GPU_TRAINER, os.environ) as (buildah, _, identity):
            found = layers(json.loads(run(*buildah, "inspect", "--type=image", identity)))
            print("\n".join(table(found)))
            container = run(*buildah, "from", "--pull-never", identity).strip()
            try:
                for module in IMPORTS:
                    _import(buildah, container, module)
            finally:
                run(*buildah, "rm", container)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def layers(inspected: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Return the layers that `buildah inspect` shows."""
    sizes = [layer["size"] for layer in json.loads(inspected["Manifest"])["layers"]]
    history = [each for each in inspected["OCIv1"]["history"] if not each.get("empty_layer")]
    return tuple(Layer(size, each["created_by"]) for size, each in zip(sizes, history, strict=True))


def table(found: Sequence[Layer]) -> Iterator[str]:
    """Yield a line for each layer, and their sum."""
    for layer in found:
        yield f"{layer.size / 2**20:8.0f} MiB  {' '.join(layer.made_by.split())[:LONGEST]}"
    yield f"{sum(layer.size for layer in found) / 2**20:8.0f} MiB  in all"


def _import(buildah: Sequence[str], container: str, module: str) -> None:
    python = ("/opt/rljob/bin/python", "-W", "ignore", "-c", f"import {module}")
    run(*buildah, "run", "--isolation=chroot", container, "--", *python)
    print(f"imported {module}")


if __name__ == "__main__":
    sys.exit(main())
