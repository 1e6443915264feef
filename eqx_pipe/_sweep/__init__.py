"""Sweeps: `sweep.py` is the entry, `compute` makes rows, and `sinks` keep them."""

from .plan import SweepPlan as SweepPlan
from .plan import plan as plan
from .request import BatchSize as BatchSize
from .request import Executor as Executor
from .request import request_of as request_of
from .results import Best as Best
from .results import Compared as Compared
from .results import SweepResult as SweepResult
from .results import ranked as ranked
from .results import scores as scores
from .store import disk_errors as disk_errors
from .store import gaps_of as gaps_of
from .sweep import Sweeper as Sweeper
from .sweep import sweep as sweep
from .sweep import sweeper as sweeper
from .vmap_space import vmap_space as vmap_space
