"""Strategies for single stages."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

from ..._stage import Stage, identity
from ..._types import Key, PyTree, StageLike
from .arrays import arrays
from .registry import registered
from .validate import Draw, check_bool, check_struct, composite, structs_of


class Affine(Stage):
    """Scales and shifts each leaf elementwise; has a parameter for each number."""

    scale: PyTree
    shift: PyTree

    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        return jtu.tree_map(lambda a, b, v: a * v + b, self.scale, self.shift, x)


def squash(x: PyTree) -> PyTree:
    """The hyperbolic tangent of each leaf."""
    return jtu.tree_map(jnp.tanh, x)


def add_noise(x: PyTree, *, key: Key) -> PyTree:
    """Adds normal draws to each leaf."""
    leaves, structure = jtu.tree_flatten(x)
    keys = jr.split(key, len(leaves))
    drawn = [
        v + jr.normal(k, v.shape, jnp.result_type(v))
        for k, v in zip(keys, leaves, strict=True)
    ]
    return jtu.tree_unflatten(structure, drawn)


def is_inexact(struct: PyTree) -> bool:
    """Whether all leaves hold real or complex numbers."""
    return all(jnp.issubdtype(v.dtype, jnp.inexact) for v in jtu.tree_leaves(struct))


# Not zero, which would hide all that comes before.
_scales = st.integers(-4, 3).map(lambda i: (i + (i >= 0)) / 4)


@composite
def stages(draw: Draw, struct: PyTree, *, random: bool = True) -> StageLike:
    """A stage without stages inside, whose output is like its input.

    The identity, elementwise functions and affine maps, `equinox.nn` layers where the
    input is a vector, stages with noise, and your own: see `register_stage`.

    **Arguments:**

    - `struct`: the shapes and dtypes of the input: a pytree of
      `jax.ShapeDtypeStruct`, or of arrays.
    - `random`: whether stages that need a key are among them. (Keyword only.)

    **Returns:** a strategy. It shrinks to the identity.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, hypothesis, jax.numpy as jnp
        >>> x = jnp.arange(3.0)
        >>> @hypothesis.given(ept.stages(x, random=False))
        ... def test_shape_is_kept(stage):
        ...     assert ep.lift(stage)(x).shape == x.shape
        >>> test_shape_is_kept()
    """
    check_struct("stages", struct)
    check_bool("stages", "random", random)
    struct = structs_of(struct)
    found: list[st.SearchStrategy] = [st.just(identity)]
    if is_inexact(struct):
        found += [
            st.just(squash),
            st.builds(Affine, arrays(struct, elements=_scales), arrays(struct)),
        ]
        found += _layers(struct)
        if random:
            found += _random(struct)
    # The choice first, and then one draw: `one_of` of all has a text without end.
    own = registered(struct, random)
    return draw(draw(st.sampled_from(found + own)))


def _layers(struct: PyTree) -> list[st.SearchStrategy]:
    if not isinstance(struct, jax.ShapeDtypeStruct) or len(struct.shape) != 1:
        return []
    if struct.dtype == jnp.float32 and struct.shape[0] > 1:
        norm: list[st.SearchStrategy] = [st.just(eqx.nn.LayerNorm(struct.shape))]
    else:
        norm = []

    def linear(seed: int) -> eqx.nn.Linear:
        size = struct.shape[0]
        return eqx.nn.Linear(size, size, key=jr.key(seed), dtype=struct.dtype)

    return [st.integers(0, 3).map(linear), *norm]


def _random(struct: PyTree) -> list[st.SearchStrategy]:
    single = isinstance(struct, jax.ShapeDtypeStruct)
    dropout: list[st.SearchStrategy] = [st.just(eqx.nn.Dropout(0.5))] if single else []
    return [st.just(add_noise), *dropout]
