"""A page over the stores of sweeps, searches and trainings, and event files of them."""

from .events import export
from .serve import Page, server_of, show
