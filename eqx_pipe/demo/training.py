"""One training as a pure function of its setting."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float

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
