"""The main job, end to end on real images: `eqx-pipe demo`."""

from .cli import add_demo as add_demo
from .model import make_model as make_model
