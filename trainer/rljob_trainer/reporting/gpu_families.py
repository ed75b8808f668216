"""The metrics of each GPU for Prometheus: values of the last step, and only of GPUs that the run has now."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rljob_trainer.gpu_metrics import GpuUse

FAMILIES: Final = {
    "utilisation": ("rljob_gpu_device_utilisation_ratio", "Share of time in which a kernel ran (last step)"),
    "memory_bytes": ("rljob_gpu_device_memory_used_bytes", "Most memory in use by all processes (last step)"),
    "memory_total_bytes": ("rljob_gpu_device_memory_size_bytes", "Memory of the GPU"),
    "power_watts": ("rljob_gpu_device_power_watts", "Mean power (last step)"),
    "temperature": ("rljob_gpu_device_temperature_celsius", "Highest temperature (last step)"),
    "slowed": (
        "rljob_gpu_device_throttled_ratio",
        "Share of readings in which heat or the power supply lowered the clocks (last step)",
    ),
}
"""field of a GPU's use -> name and text"""


class GpuFamilies(Collector):
    """One series of each family for each GPU that has the value."""

    def __init__(self) -> None:
        self._gpus: Mapping[str, GpuUse] = {}

    def show(self, gpus: Mapping[str, GpuUse]) -> None:
        """Show these GPUs from now on; a step without a reading leaves the earlier ones."""
        self._gpus = gpus or self._gpus

    def collect(self) -> Iterator[Metric]:
        gpus = self._gpus
        for name, (family_name, text) in FAMILIES.items():
            family = GaugeMetricFamily(family_name, text, labels=["node", "gpu"])
            for gpu, use in gpus.items():
                if (value := getattr(use, name)) is not None:
                    family.add_metric(gpu.rsplit(":", 1), float(value))
            yield family
