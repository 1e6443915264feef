"""Masks of the parameters to train, chosen by path."""

import equinox as eqx
import jax.tree_util as jtu

from .._stage import (
    NamedLeaf,
    check_matched,
    check_patterns,
    chooser,
    chosen_whole,
    named_leaves,
)
from .._types import PyTree

_MASKED = (
    " To train some of them, mask the gradients by position, or do not stack them "
    "(`chain(*blocks)` runs as a `repeat` does)."
)


def trainable(pipe: PyTree, *patterns: str) -> PyTree[bool]:
    """Return a mask of the leaves of a pipeline to train.

    The result is a filter spec: `equinox.partition(pipe, spec)` splits trained from
    frozen leaves, and `optax.masked(optimiser, spec)` updates the trained ones only.
    For `optax.multi_transform`, make labels, `labels = jax.tree.map(lambda train:
    "fast" if train else "slow", spec)`, and pass the function `lambda params: labels`:
    Optax calls labels that are callable, as a pipeline is. To freeze by path, exclude:
    `trainable(pipe, "!encoder")`.

    **Arguments:**

    - `pipe`: a pipeline, or any module.
    - `patterns`: patterns of the paths of stages, as in `outputs`, and of the arrays
        inside them (`head.weight`). A match includes everything below it. Each part of
        a path is matched like a file name in a shell: `"head*"`, `"blocks.*.attn"`,
        `"blocks.[01]"`; `**` matches any number of parts (`"**.bias"`), and `!`
        excludes. The last pattern that matches decides. Without patterns all parameters
        are trained.

    **Returns:** a pytree of bools with the structure of `pipe`. Only parameters can be
    True: floating-point or complex arrays that are not state.

    **Raises:**

    - `TypeError` if a pattern is not a string.
    - `ValueError` if a pattern matches no parameter (the error names the nearest
        paths), or some but not all stages of a `repeat` or `ensemble`, whose parameters
        are stacked in one array.

    **Laws:** `trainable(pipe, p)` and `trainable(pipe, "!" + p)` are complementary:
    exactly one of them is True for each parameter.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> body, head = (eqx.nn.Linear(3, 3, key=jr.key(i)) for i in range(2))
        >>> pipe = ep.chain(body=body, act=jnp.tanh, head=head)
        >>> trained, frozen = eqx.partition(pipe, ep.trainable(pipe, "head*"))
        >>> loss = lambda trained, x: jnp.sum(eqx.combine(trained, frozen)(x))
        >>> grads = eqx.filter_grad(loss)(trained, jnp.ones(3))
        >>> grads["body"].weight, grads["head"].weight.shape
        (None, (3, 3))
    """
    check_patterns("trainable", "patterns", patterns)
    leaves = named_leaves(pipe)
    parameters = list(filter(_is_parameter, leaves))
    paths = [path for leaf in parameters for path in leaf.paths.flat]
    check_matched("trainable", patterns, paths, "parameter", below=True)
    chosen = chooser(patterns or ("**",), below=True)
    flags = [
        _is_parameter(leaf) and chosen_whole("trainable", leaf.paths, chosen, _MASKED)
        for leaf in leaves
    ]
    return jtu.tree_structure(pipe).unflatten(flags)


def _is_parameter(leaf: NamedLeaf) -> bool:
    return eqx.is_inexact_array(leaf.value) and not leaf.is_state
