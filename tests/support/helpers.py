"""Helpers that several test files share."""

import equinox as eqx
import hypothesis
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_pipe._stage import named_leaves

THOROUGH = hypothesis.settings().max_examples > 100
"""True under `--hypothesis-profile thorough`, which also kills more processes."""

few = hypothesis.settings(max_examples=max(2, hypothesis.settings().max_examples // 4))
"""For tests of which each example compiles some twenty programs."""

fewest = hypothesis.settings(
    max_examples=max(2, hypothesis.settings().max_examples // 10)
)
"""For tests of which each example takes a second."""


def slow_unless(quick, names):
    """Return cases of a table; those not in `quick` run with `-m slow` only.

    For a law over many implementations, some of which differ in little.
    """
    assert set(quick) <= set(names), set(quick) - set(names)
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


def assert_agree(a, b, *, tolerance=1e-4):
    """Raise unless two pytrees agree in structure, shapes, dtypes and values."""
    assert jtu.tree_structure(a) == jtu.tree_structure(b)
    for left, right in zip(jtu.tree_leaves(a), jtu.tree_leaves(b), strict=True):
        if not eqx.is_array(left):
            assert left == right
            continue
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
        bound = 0.1 if left.dtype == jnp.bfloat16 else tolerance
        # Compared by NumPy: for JAX that would be a program for each shape.
        left, right = (
            np.asarray(v, np.float32 if v.dtype == jnp.bfloat16 else v.dtype)
            for v in (left, right)
        )
        assert np.allclose(left, right, rtol=bound, atol=bound)


def numbers(struct, seed=0):
    """Return normal numbers of the shapes and dtypes of a struct, by a seed."""
    rng = np.random.default_rng(seed)

    # Cast by NumPy: for JAX that would be a program for each shape.
    def one(v):
        return jnp.asarray(np.asarray(rng.normal(size=v.shape)).astype(v.dtype))

    return jtu.tree_map(one, struct)


def filled(make, key):
    """Return `make(key)` with other numbers, for which nothing is compiled.

    To draw the weights of a layer takes a quarter of a second of compilation for each
    shape, and where a test makes layers when it is imported, each process pays that.
    """
    structs, rest = eqx.partition(
        eqx.filter_eval_shape(make, key),
        lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct),
    )
    return eqx.combine(numbers(structs), rest)


def arrays_by_path(tree):
    """Return the arrays of a pytree by the paths that patterns match."""
    found = named_leaves(tree)
    return {at.name: at.value for at in found if eqx.is_array(at.value)}
