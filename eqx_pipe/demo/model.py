"""The pipeline that the demo trains: from an image to ten scores."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

import eqx_pipe as ep

from .._types import Key, PyTree

Image = Float[Array, "height width"]


def scale(image: Float[Array, "8 8"]) -> Float[Array, "8 8"]:
    """Pixels from 0..16 to about -0.3..0.7, with a mean near zero."""
    return image / 16 - 0.3


def blur(image: Image) -> Image:
    """Each pixel averaged with its neighbours."""
    image = jnp.pad(image, 1, mode="edge")
    image = (image[:-2] + 2 * image[1:-1] + image[2:]) / 4
    return (image[:, :-2] + 2 * image[:, 1:-1] + image[:, 2:]) / 4


def edges(image: Image) -> Image:
    """How steep the image is at each pixel."""
    down, right = jnp.gradient(image)
    # The square root has no slope at 0, where the image is flat.
    return jnp.sqrt(down**2 + right**2 + 1e-6)


def make_model(*, key: Key) -> ep.Stage:
    """An untrained pipeline; also what a saved one is loaded into."""
    return ep.chain(
        scale=scale,
        views=ep.weighted(blur, edges, ep.identity),
        flatten=jnp.ravel,
        head=eqx.nn.MLP(64, 10, width_size=64, depth=1, key=key),
    )


def mixture(model: PyTree) -> Float[Array, " views"]:
    """The weights of blur, edges and identity in a pipeline of `make_model`."""
    return model["views"].weights
