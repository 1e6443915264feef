"""A page over the stores of sweeps, searches and trainings, and event files of them."""

from .events import export as export
from .serve import Page as Page
from .serve import server_of as server_of
from .serve import show as show
