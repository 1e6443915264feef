"""Sweeps: `sweep.py` is the entry, `work` makes rows, and `sinks` keep them."""

from .identity import as_texts
from .plan import Outcome
from .preview import SweepPlan, plan
from .request import BatchSize, Executor, Request, Resume, request_of
from .stored_plan import check_settings
from .sweep import result_of, sweep
from .sweeper import Sweeper, sweeper
from .trace.cases import cases_of, check_agree, rows_of
from .vmap_space import vmap_space
