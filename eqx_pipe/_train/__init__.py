"""Trainings: many at once, as lanes of one program, with curves and checkpoints."""

from .checkpoint import CHECKPOINTS as CHECKPOINTS
from .checkpoint import damage as damage
from .lanes import Training as Training
from .plan import plan_train as plan_train
from .result import STATUS as STATUS
from .result import TrainResult as TrainResult
from .schedulers import PBT as PBT
from .schedulers import Halving as Halving
from .schedulers import Population as Population
from .train import train as train
