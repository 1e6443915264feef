"""Sweeps: `run.py` is the entry, `compute` makes rows, `sinks` keep them."""

from .ahead import plan as plan
from .results.planned import SweepPlan as SweepPlan
from .results.result import SweepResult as SweepResult
from .sweep import sweep as sweep
from .sweeper import sweeper as sweeper
from .vmap_space import vmap_space as vmap_space
