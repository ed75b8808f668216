"""Which dashboard is which file of the chart."""

from pathlib import Path

from dashboards.fleet import FLEET
from dashboards.job import JOB

TARGET = Path(__file__).parents[1] / "rljob" / "dashboards"
DASHBOARDS = {"fleet": FLEET, "job": JOB}
