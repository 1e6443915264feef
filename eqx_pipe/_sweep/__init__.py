"""Sweeps: `sweep.py` is the entry, `work` makes rows, and `sinks` keep them."""

from .identity import as_texts as as_texts
from .mismatch import check_settings as check_settings
from .plan import Outcome as Outcome
from .preview import SweepPlan as SweepPlan
from .preview import plan as plan
from .request import BatchSize as BatchSize
from .request import Executor as Executor
from .request import Request as Request
from .request import Resume as Resume
from .request import request_of as request_of
from .sweep import result_of as result_of
from .sweep import sweep as sweep
from .sweeper import Sweeper as Sweeper
from .sweeper import sweeper as sweeper
from .trace.cases import cases_of as cases_of
from .trace.cases import check_agree as check_agree
from .trace.cases import rows_of as rows_of
from .vmap_space import vmap_space as vmap_space
