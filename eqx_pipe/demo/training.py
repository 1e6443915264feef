"""One training as a pure function of its setting, and the sweep over settings."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float
from xarray import Dataset

import eqx_pipe as ep

from .data import Digits, Images
from .model import make_model

BATCH_SIZE = 64

Carry = tuple[ep.Stage, optax.OptState]
"""What a training goes on with: the pipeline and the optimizer's state."""


class Setting(NamedTuple):
    """What a training depends on. With axes for numbers, it is a space of settings."""

    # `Any`: a number, an array, a tracer or an axis, as the case may be.
    learning_rate: Any
    weight_decay: Any
    seed: Any


def loss_and_accuracy(
    model: ep.Stage, images: Images
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean cross-entropy in nats, and the share of images that are named right."""
    scores = ep.batched(model)(images.pixels)
    loss = optax.softmax_cross_entropy_with_integer_labels(scores, images.labels).mean()
    return loss, jnp.mean(jnp.argmax(scores, axis=-1) == images.labels)


def train(
    setting: Setting, images: Images, num_steps: int
) -> tuple[ep.Stage, Float[Array, " steps"]]:
    """A trained pipeline and the loss at each step.

    The seed decides the initial parameters and the batches, so trainings of one seed
    differ by their setting alone.
    """
    init_key, data_key = jr.split(jr.key(setting.seed))
    model = make_model(key=init_key)
    loader = ep.Loader(ep.ArraySource(images), batch_size=BATCH_SIZE)
    optimizer = optax.adamw(
        optax.cosine_decay_schedule(setting.learning_rate, num_steps),
        weight_decay=setting.weight_decay,
    )

    def step(carry: Carry, batch: Images) -> tuple[Carry, Float[Array, ""]]:
        model, state = carry
        gradient_of = eqx.filter_value_and_grad(loss_and_accuracy, has_aux=True)
        (loss, _), gradient = gradient_of(model, batch)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, state = optimizer.update(gradient, state, params)
        return (eqx.apply_updates(model, updates), state), loss

    start = (model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)))
    cursor = loader.init(data_key)
    (model, _), losses, _ = loader.scan(step, start, cursor, length=num_steps)
    return model, losses


def score(setting: Setting, digits: Digits, num_steps: int) -> dict[str, Array]:
    """What the sweep keeps of a training."""
    model, losses = train(setting, digits.train, num_steps)
    loss, accuracy = loss_and_accuracy(model, digits.validation)
    return {
        "train_loss": losses[-10:].mean(),
        "validation_loss": loss,
        "validation_accuracy": accuracy,
    }


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
