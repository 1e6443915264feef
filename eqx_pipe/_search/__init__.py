"""Searches: methods that propose points, the loop over rounds, and sensitivities."""

from .explore import SearchResult as SearchResult
from .explore import explore as explore
from .method import Adaptive as Adaptive
from .method import Design as Design
from .method import Evosax as Evosax
from .method import Method as Method
from .method import Optuna as Optuna
from .method import losses as losses
from .sensitivity import sensitivity as sensitivity
from .sensitivity import sensitivity_design as sensitivity_design
