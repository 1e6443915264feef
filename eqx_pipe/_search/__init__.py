"""Searches: methods that propose points, and the loop over rounds."""

from .explore import SearchResult, explore, rounds_in
from .method import Adaptive, Design, Evosax, Method, Optuna, losses
