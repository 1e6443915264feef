"""A page over the stores of sweeps, searches and trainings."""

from .serve import Page as Page
from .serve import server_of as server_of
from .serve import show as show
