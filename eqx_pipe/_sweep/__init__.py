"""Sweeps: `sweep.py` is the entry, `compute` makes rows, and `sinks` keep them."""

from .request import BatchSize as BatchSize
from .request import Executor as Executor
from .request import request_of as request_of
from .results.result import SweepResult as SweepResult
from .results.select import Best as Best
from .results.select import Compared as Compared
from .results.select import ranked as ranked
from .results.select import scores as scores
from .store import gaps_of as gaps_of
from .sweep import sweep as sweep
from .sweep_plan import SweepPlan as SweepPlan
from .sweep_plan import plan as plan
from .sweeper import Sweeper as Sweeper
from .sweeper import sweeper as sweeper
from .vmap_space import vmap_space as vmap_space
