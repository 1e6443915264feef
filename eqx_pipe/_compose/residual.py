"""Stages whose output is added to their input."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._stage import Canvas, Scope, Wire
from .._tree import as_arrays, join_path
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, keyed, read_stages
from .feed import check_over, in_order
from .merge import SUM_BY_CALLABLE, check_agree, check_arrays


class Residual(Container):
    """Stages with a skip connection; see `residual`."""

    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    over: str | None = eqx.field(static=True, default=None)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        over = self.over
        y, state = in_order("residual", keyed(self), over, x, state, scope)
        *_, (last, _) = keyed(self)
        last = join_path(scope.path, last)
        both = as_arrays(x if over is None else x[over]), as_arrays(y)
        check_arrays("residual", last, both[1], "residual", SUM_BY_CALLABLE)
        cure = ', or give the input a projection by `parallel(..., merge="sum")`.'
        check_agree("residual", ("input", last), both, cure=cure)
        return jtu.tree_map(jnp.add, *both), state

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        return canvas.join("sum", [wire, canvas.row(path, self.children(), wire)])


def residual(
    *stages: StageLike | Mapping[str, StageLike], over: str | None = None
) -> Residual:
    r"""Add the output of some stages to their input: $x + f(x)$.

    The stages are applied left to right, as in a `chain`. For a pre-norm block write
    `residual(norm, attention)`, for a post-norm block
    `chain(residual(attention), norm)`. Stages draw as in a `chain`. For a projection of
    the input write `parallel(projection, chain(...), merge="sum")`.

    **Arguments:**

    - `stages`: one or more stages, or one mapping from names to stages.
    - `over`: the name of the entry to add, if the stages take a mapping of several
        inputs, as in `chain`. (Keyword only.)

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
    stages; `residual(f, g)` is `residual(chain(f, g))`, also with the same `over`.

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
    check_over("residual", over)
    names, children = read_stages("residual", "stages", stages)
    return Residual(children, names, over)
