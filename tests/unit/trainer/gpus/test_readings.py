"""Readings of a step become one line for each GPU."""

import pynvml
import pytest

from rljob_trainer.gpu_metrics import GpuMetrics, GpuUse
from rljob_trainer.gpus.readings import Gathered, Looked, Reading, Tally, Xid, bus_in_logs, names_of

HEAT = pynvml.nvmlClocksEventReasonHwThermalSlowdown


def use_of(readings: list[Reading]) -> GpuUse:
    tally = Tally()
    for reading in readings:
        tally.add(reading)
    return tally.use


def test_a_step_has_means_of_load_and_the_most_of_memory_and_heat():
    readings = [Reading("a:0", 0.2, 5, 9, 100.0, 60.0), Reading("a:0", 0.4, 7, 9, 300.0, 80.0), Reading("a:0")]
    assert use_of(readings[:2]) == GpuUse(
        utilisation=pytest.approx(0.3), memory_bytes=7, memory_total_bytes=9, power_watts=200.0, temperature=80.0
    )
    assert (use_of(readings).utilisation, use_of(readings[2:]).utilisation) == (pytest.approx(0.3), None)


@pytest.mark.parametrize(
    ("reason", "hot", "braked"),
    [
        ("SwThermalSlowdown", 1, 0),
        ("HwThermalSlowdown", 1, 0),
        ("HwPowerBrakeSlowdown", 0, 1),
        ("HwSlowdown", 0, 1),
        ("SwPowerCap", 0, 0),
        ("GpuIdle", 0, 0),
        ("SyncBoost", 0, 0),
        ("ApplicationsClocksSetting", 0, 0),
    ],
)
def test_heat_and_power_brake_slow_a_gpu_down_and_its_usual_limit_does_not(reason: str, hot: int, braked: int):
    bits = getattr(pynvml, f"nvmlClocksEventReason{reason}")
    use = use_of([Reading("a:0", clock_reasons=bits)])
    assert (use.hot, use.braked) == (hot, braked)
    assert use_of([Reading("a:0", clock_reasons=bits), Reading("a:0")]).slowed == (hot + braked) / 2


def test_a_hardware_slowdown_by_heat_counts_once():
    use = use_of([Reading("a:0", clock_reasons=HEAT | pynvml.nvmlClocksEventReasonHwSlowdown)])
    assert (use.hot, use.braked, use.slowed) == (1, 0, 1)


def test_what_was_taken_is_not_taken_again():
    gathered = Gathered()
    gathered.add(Looked((Reading("a:1"), Reading("a:0", 0.5)), (Xid("a:0", "b", 31), Xid("c:9", "b", 79))))
    assert gathered.take() == {
        "a:0": GpuUse(utilisation=0.5, xids=(31,)),
        "a:1": GpuUse(),
        "c:9": GpuUse(xids=(79,)),
    }
    assert gathered.take() == {}


def test_only_memory_errors_of_this_run_count_and_each_once():
    gathered = Gathered()
    looks = [gathered.add(Looked((Reading("a:0", ecc_errors=errors),))) for errors in (4, 4, 6, None, 7)]
    assert looks == [{}, {}, {"a:0": 2}, {}, {"a:0": 1}]
    assert gathered.take()["a:0"].ecc_errors == 3
    gathered.add(Looked((Reading("a:0", ecc_errors=7),)))
    assert gathered.take()["a:0"].ecc_errors == 0


def test_gpus_together_have_a_mean_load_the_sum_of_power_and_the_worst_of_the_rest():
    gpus = GpuMetrics(
        gpus={
            "a:0": GpuUse(utilisation=0.2, memory_bytes=5, power_watts=100.0, temperature=50.0, hot=0.5, xids=(31,)),
            "a:1": GpuUse(utilisation=0.6, memory_bytes=3, power_watts=50.0, temperature=70.0, ecc_errors=2),
            "a:2": GpuUse(xids=(48, 63), braked=0.1),
        }
    )
    assert (gpus.gpu_utilisation, gpus.gpu_memory, gpus.gpu_power) == (pytest.approx(0.4), 5, 150.0)
    assert (gpus.gpu_temperature, gpus.gpu_throttled, gpus.gpu_xids, gpus.gpu_ecc_errors) == (70.0, 0.5, 3, 2)


def test_without_readings_nothing_is_known_and_no_error_counted():
    none = GpuMetrics()
    assert (none.gpu_utilisation, none.gpu_memory, none.gpu_power, none.gpu_temperature) == (None,) * 4
    assert (none.gpu_throttled, none.gpu_xids, none.gpu_ecc_errors) == (None, 0, 0)


@pytest.mark.parametrize(
    ("visible", "count", "names"),
    [(None, 2, ("0", "1")), ("", 1, ("0",)), ("3, 5,6", 2, ("3", "5")), ("GPU-a", 4, ("GPU-a",))],
)
def test_the_gpus_of_a_run_are_those_that_it_may_see(visible: str | None, count: int, names: tuple[str, ...]):
    assert names_of(visible, count) == names


def test_a_bus_is_written_as_in_the_log_of_the_kernel():
    assert bus_in_logs("00000000:5D:00.0") == "0000:5d:00"
    assert bus_in_logs("00010000:AB:00.0") == "0000:ab:00"
