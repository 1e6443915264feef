"""Searches: methods that propose points, and the loop over rounds."""

from .explore import SearchResult as SearchResult
from .explore import explore as explore
from .explore import rounds_in as rounds_in
from .method import Adaptive as Adaptive
from .method import Design as Design
from .method import Evosax as Evosax
from .method import Method as Method
from .method import Optuna as Optuna
from .method import losses as losses
