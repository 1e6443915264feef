"""Stages whose output is added to their input."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._stage import Canvas, Scope, Wire
from .._tree import as_arrays, join_path
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, keyed, read_stages
from .feed import Broadcast, carried_entry, in_order, read_broadcast
from .merge import SUM_BY_CALLABLE, check_agree, check_arrays


class Residual(Container):
    """Stages with a skip connection; see `residual`."""

    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    broadcast: tuple[str, ...] = eqx.field(static=True, default=())

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        broadcast = self.broadcast
        y, state = in_order("residual", keyed(self), broadcast, x, state, scope)
        *_, (last, _) = keyed(self)
        last = join_path(scope.path, last)
        x, _ = carried_entry("residual", broadcast, x, scope)
        both = as_arrays(x), as_arrays(y)
        check_arrays("residual", last, both[1], "residual", SUM_BY_CALLABLE)
        cure = ', or give the input a projection by `parallel(..., merge="sum")`.'
        check_agree("residual", ("input", last), both, cure=cure)
        return jtu.tree_map(jnp.add, *both), state

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        return canvas.join("sum", [wire, canvas.row(path, self.children(), wire)])


def residual(
    *stages: StageLike | Mapping[str, StageLike], broadcast: Broadcast = ()
) -> Residual:
    r"""Add the output of some stages to their input: $x + f(x)$.

    The stages are applied left to right, as in a `chain`. For a pre-norm block write
    `residual(norm, attention)`, for a post-norm block
    `chain(residual(attention), norm)`. Stages draw as in a `chain`. For a projection of
    the input write `parallel(projection, chain(...), merge="sum")`.

    **Arguments:**

    - `stages`: one or more stages, or one mapping from names to stages.
    - `broadcast`: the name, or names, of the entries that every stage reads, if the
        stages take a mapping of several inputs, as in `chain`; the output is added to
        the other entry. (Keyword only.)

    **Returns:** a stage, with the container methods of a `chain`.

    **Shapes:** input and output have the same structure, shapes and dtypes; nothing is
    broadcast.

    **Raises:**

    - `ValueError` if there is no stage, or a name is invalid.
    - `TypeError` if something is not a stage; when called, if a leaf cannot be added
      (text, keys).
    - `StructureError` (a `ValueError`), when called, if input and output differ in
      structure, shape or dtype; the error names the leaf.

    **Laws:** `residual(f)` is `parallel(Identity(), f, merge="sum")` for deterministic
    stages; `residual(f, g)` is `residual(chain(f, g))`, also with the same `broadcast`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> ep.residual(jnp.square)(jnp.arange(3.0)).tolist()
        [0.0, 2.0, 6.0]
        >>> layer = eqx.nn.Linear(3, 3, key=jr.key(0))
        >>> ep.residual(eqx.nn.LayerNorm(3), layer)(jnp.ones(3)).shape
        (3,)

    ??? cite "Source"

        He et al., *Deep Residual Learning for Image Recognition*, 2015, arXiv
        1512.03385.
    """
    broadcast = read_broadcast("residual", broadcast)
    names, children = read_stages("residual", "stages", stages)
    return Residual(children, names, broadcast)
