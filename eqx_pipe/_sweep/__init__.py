"""Sweeps: `sweep.py` is the entry, `work` makes rows, and `sinks` keep them."""

from .identity import as_texts
from .mismatch import check_settings
from .plan import Outcome
from .preview import SweepPlan, plan
from .request import BatchSize, Executor, Request, Resume, request_of
from .sweep import result_of, sweep
from .sweeper import Sweeper, sweeper
from .trace.cases import cases_of, check_agree, rows_of
from .vmap_space import vmap_space
