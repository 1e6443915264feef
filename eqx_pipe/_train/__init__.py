"""Trainings: many at once, as lanes of one program, with curves and checkpoints."""

from .checkpoint import CHECKPOINTS, damage
from .lanes import Training
from .plan import plan_train
from .result import STATUS, TrainResult
from .schedulers import PBT, Halving, Population
from .train import train
