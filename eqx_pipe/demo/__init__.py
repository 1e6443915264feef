"""The main job, end to end on real images: `eqx-pipe demo`."""

from .cli import main as main
from .model import make_model as make_model
