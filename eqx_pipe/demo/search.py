"""The sweep over trainings, and the choice of the best setting."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from xarray import Dataset

import eqx_pipe as ep

from .data import Digits
from .training import Setting, score


class Size(NamedTuple):
    """How much to compute."""

    num_steps: int
    learning_rates: int
    weight_decays: int
    seeds: int

    @property
    def num_trainings(self) -> int:
        return self.learning_rates * self.weight_decays * self.seeds


FULL = Size(num_steps=1200, learning_rates=8, weight_decays=6, seeds=4)
QUICK = Size(num_steps=400, learning_rates=4, weight_decays=3, seeds=2)


def make_space(size: Size, seed: int) -> Setting:
    """A grid of settings: a setting with axes in place of numbers."""
    first = seed * size.seeds
    return Setting(
        learning_rate=ep.Geomspace(1e-3, 1e-1, size.learning_rates),
        weight_decay=ep.Geomspace(1e-3, 1.0, size.weight_decays),
        seed=ep.Values(jnp.arange(first, first + size.seeds)),
    )


def search(digits: Digits, size: Size, seed: int) -> ep.SweepResult:
    """Trains the pipeline at every point of the grid."""
    return ep.sweep(
        lambda setting: score(setting, digits, size.num_steps), make_space(size, seed)
    )


def choose(table: Dataset) -> tuple[Setting, float]:
    """The best setting by validation accuracy, and that accuracy.

    Learning rate and weight decay are chosen by the mean over the seeds, which is less
    a matter of luck than the best single training; the seed then within them. `table`
    is the labelled result.
    """
    accuracy = table["validation_accuracy"]
    mean = accuracy.mean("seed")
    best = mean.isel(mean.argmax(["learning_rate", "weight_decay"]))
    rate, decay = best["learning_rate"], best["weight_decay"]
    seeds = accuracy.sel(learning_rate=rate, weight_decay=decay)
    seed = seeds.isel(seed=int(np.argmax(seeds.values)))["seed"]
    values = (np.asarray(value) for value in (rate, decay, seed))
    return Setting(*values), float(best)
