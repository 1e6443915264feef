"""Searches: methods that propose points, and sensitivity analyses.

Methods of other packages need them: `pip install 'eqx_pipe[search]'`.
"""

from ._explore import HalvingResult as HalvingResult
from ._explore import Method as Method
from ._explore import SearchResult as SearchResult
from ._explore import Training as Training
from ._explore import design as design
from ._explore import evolution as evolution
from ._explore import explore as explore
from ._explore import halving as halving
from ._explore import optuna as optuna
from ._explore import refine as refine
from ._explore import sensitivity as sensitivity
from ._explore import sensitivity_design as sensitivity_design

__all__ = [
    "HalvingResult",
    "Method",
    "SearchResult",
    "Training",
    "design",
    "evolution",
    "explore",
    "halving",
    "optuna",
    "refine",
    "sensitivity",
    "sensitivity_design",
]
