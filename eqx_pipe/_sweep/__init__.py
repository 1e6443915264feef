"""Sweeps: `run.py` is the entry, `tracing` the lowest room, `chunks` the highest."""

from .ahead import plan as plan
from .cores import use_cpu_devices as use_cpu_devices
from .results.planned import SweepPlan as SweepPlan
from .results.result import SweepResult as SweepResult
from .run import sweep as sweep
from .sweeper import sweeper as sweeper
from .vmapped import vmap_space as vmap_space
