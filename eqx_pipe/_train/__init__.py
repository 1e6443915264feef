"""Trainings: many at once, as lanes of one program, with curves and checkpoints."""

from .identity import as_texts as as_texts
from .population import Population as Population
from .result import TrainResult as TrainResult
from .schedulers import PBT as PBT
from .schedulers import Halving as Halving
from .train import train as train
from .training import Training as Training
