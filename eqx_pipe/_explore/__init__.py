"""Searches: methods that propose points, the loop that computes them; sensitivities."""

from .design import design as design
from .explore import explore as explore
from .explored import SearchResult as SearchResult
from .halving import HalvingResult as HalvingResult
from .halving import Training as Training
from .halving import halving as halving
from .method import Method as Method
from .packages import evolution as evolution
from .packages import optuna as optuna
from .packages import refine as refine
from .sensitivity import sensitivity as sensitivity
from .sensitivity import sensitivity_design as sensitivity_design
