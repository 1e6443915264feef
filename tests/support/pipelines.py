"""Draw pipelines of nested combinators, for laws that hold for every pipeline."""

import functools as ft
import operator

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

import eqx_pipe as ep
import eqx_pipe.testing as ept


class Affine(ep.Stage):
    """A scale and a shift for each number."""

    scale: PyTree
    shift: PyTree

    def __call__(self, x, *, key=None):
        return jtu.tree_map(lambda a, b, v: a * v + b, self.scale, self.shift, x)


def squash(x):
    """Return the hyperbolic tangent of each leaf."""
    return jtu.tree_map(jnp.tanh, x)


def is_inexact(struct):
    """Return whether all leaves hold real or complex numbers."""
    return all(jnp.issubdtype(v.dtype, jnp.inexact) for v in jtu.tree_leaves(struct))


_same = eqx.nn.Identity()

# Not zero, which would hide all earlier stages.
_scales = st.integers(-4, 3).map(lambda i: (i + (i >= 0)) / 4)


def leaves(struct, random):
    """Return strategies of stages that keep a struct, the simplest first."""
    strategies = [st.just(_same)]
    if is_inexact(struct):
        scale, shift = ept.arrays(struct, elements=_scales), ept.arrays(struct)
        strategies += [st.just(squash), st.builds(Affine, scale, shift)]
        if random and isinstance(struct, jax.ShapeDtypeStruct):
            strategies.append(st.just(eqx.nn.Dropout(0.5)))
    return strategies


# Unequal shares, as the mean of `x` and `-x` would hide the input.
_SHARE = 0.62


def mean(trees):
    """Return a mean in which later parts have smaller shares."""

    def mix(*leaves):
        shares = [v * _SHARE**i for i, v in enumerate(leaves)]
        return ft.reduce(operator.add, shares) / len(leaves)

    return jtu.tree_map(mix, *trees)


def mean_of_stack(tree):
    """Return the mean of two stacked parts."""
    return mean(tuple(jtu.tree_map(lambda v, i=i: v[i], tree) for i in range(2)))


def twice(x):
    """Return a batch of two."""
    return jtu.tree_map(lambda v: jnp.stack([v, -v]), x)


def positive(x):
    """Return a predicate of the first number."""
    # A sum, which is 0 for an array without elements.
    first = jnp.sum(jnp.real(jtu.tree_leaves(x)[0]).ravel()[:1])
    # Not compared with zero, where rounding could change the result.
    return first.astype(jnp.float32) > 0.0317


# Each makes a stage of one or two stages.
_ANY = {
    "chain": ep.chain,
    "named chain": lambda one, two=_same: ep.chain(one=one, two=two),
    "max": lambda *stages: ep.parallel(*stages, merge="max"),
    "repeat": lambda *stages: ep.repeat(ep.chain(*stages), 2, shared=True),
}

_BRANCHES = {"cond": lambda *stages: ep.cond(positive, *stages)}

# Squashed, as nested sums would leave the range of small dtypes.
_INEXACT = {
    "mean": lambda *stages: ep.parallel(*stages, merge=mean),
    "residual": lambda *stages: ep.chain(ep.residual(*stages), squash),
    "batched": lambda *stages: ep.chain(
        twice, ep.batched(ep.chain(*stages)), mean_of_stack
    ),
}


@st.composite
def pipelines(draw, struct, *, stages=(), max_depth=3, random=True, branches=True):
    """Draw a pipeline of nested combinators that keeps structure, shapes and dtypes.

    `stages` are further strategies of stages that keep any struct. `random` stages need
    a key, and `branches` are `cond`s. Examples shrink to a single stage.
    """
    struct = jtu.tree_map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), struct)
    makers = _ANY | (_BRANCHES if branches else {})
    makers |= _INEXACT if is_inexact(struct) else {}
    kept = [*leaves(struct, random), *stages]

    def pipeline(depth):
        kind = draw(st.sampled_from(["leaf", *(makers if depth else {})]))
        if kind == "leaf":
            return draw(draw(st.sampled_from(kept)))
        # Only the first child has the full depth: otherwise sizes grow exponentially.
        depths = [depth - 1, max(0, min(1, depth - 2))][: draw(st.integers(1, 2))]
        return makers[kind](*map(pipeline, depths))

    return pipeline(max_depth)
