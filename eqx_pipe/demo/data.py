"""Scikit-learn's handwritten digits: 1,797 real images that come with the package."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

NUM_HELD_OUT = 360


class Images(NamedTuple):
    """Grey images of 8 x 8 pixels from 0 to 16, and the digit that each shows."""

    pixels: Float[Array, "images 8 8"]
    labels: Int[Array, " images"]


class Digits(NamedTuple):
    """Images to train on, to choose a setting by, and to test once at the end."""

    train: Images
    validation: Images
    test: Images


def load(seed: int) -> Digits:
    """All digits, split at random with equal shares of each digit in every part."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch: Any = load_digits()
    pixels, labels = bunch.images.astype("float32"), bunch.target.astype("int32")

    def split(pixels, labels):
        return train_test_split(
            pixels, labels, test_size=NUM_HELD_OUT, random_state=seed, stratify=labels
        )

    rest_pixels, test_pixels, rest_labels, test_labels = split(pixels, labels)
    train_pixels, val_pixels, train_labels, val_labels = split(rest_pixels, rest_labels)
    return Digits(
        Images(jnp.asarray(train_pixels), jnp.asarray(train_labels)),
        Images(jnp.asarray(val_pixels), jnp.asarray(val_labels)),
        Images(jnp.asarray(test_pixels), jnp.asarray(test_labels)),
    )
