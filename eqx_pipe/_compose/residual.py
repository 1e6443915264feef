"""Stages whose output is added to their input."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._stage import Canvas, Scope, Wire, as_stage, enter
from .._tree import as_arrays, join_path
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, check_reserved, keyed, read_stages
from .merge import check_agree, check_arrays
from .named import check_over, in_order


class Residual(Container):
    """Stages with a skip connection; see `residual`."""

    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    skip: AnyStage | None
    over: str | None = eqx.field(static=True, default=None)

    def children(self) -> Mapping[str, AnyStage]:
        skip = {} if self.skip is None else {"skip": self.skip}
        return {**super().children(), **skip}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        over = self.over
        y, state = in_order("residual", keyed(self), over, x, state, scope)
        skipped = x if over is None else x[over]
        if self.skip is not None:
            skipped, state = enter(scope, "skip", self.skip, x, state=state)
        *_, (last, _) = keyed(self)
        last = join_path(scope.path, last)
        straight = join_path(scope.path, "skip")
        paths, both = (straight, last), (as_arrays(skipped), as_arrays(y))
        for path, tree in zip(paths, both, strict=True):
            check_arrays("residual", path, tree, "residual")
        check_agree("residual", paths, both, cure=", or pass a projection as `skip=`.")
        skipped, y = both
        return jtu.tree_map(jnp.add, skipped, y), state

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        skip = wire
        if self.skip is not None:
            skip = canvas.stage(path, "skip", self.skip, wire)
        straight = canvas.row(path, Container.children(self), wire)
        return canvas.join("sum", [skip, straight])


def residual(
    *stages: StageLike | Mapping[str, StageLike],
    skip: StageLike | None = None,
    over: str | None = None,
) -> Residual:
    r"""Add the output of some stages to their input: $x + f(x)$.

    The stages are applied left to right, as in a `chain`. For a pre-norm block write
    `residual(norm, attention)`, for a post-norm block
    `chain(residual(attention), norm)`. Stages draw as in a `chain`.

    **Arguments:**

    - `stages`: one or more stages, or one mapping from names to stages.
    - `skip`: a stage for the skip connection, applied to the same input: for instance,
        a projection to the shape of the output. By default the identity. It draws by
        its name, `skip`. (Keyword only.)
    - `over`: the name of the entry that the skip connection adds, if the stages take a
        mapping of several inputs, as in `chain`. (Keyword only.)

    **Returns:** a stage, with the container methods of a `chain`.

    **Shapes:** the outputs of the stages and of `skip` have the same structure, shapes
    and dtypes; nothing is broadcast.

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
        >>> wider = eqx.nn.Linear(3, 5, key=jr.key(0))
        >>> ep.residual(eqx.nn.LayerNorm(3), wider, skip=wider)(jnp.ones(3)).shape
        (5,)

    ??? cite "Source"

        He et al., *Deep Residual Learning for Image Recognition*, 2015, arXiv
        1512.03385.
    """
    check_over("residual", over)
    names, children = read_stages("residual", "stages", stages)
    check_reserved("residual", names, ("skip",))
    straight = None if skip is None else as_stage("residual", "skip", skip)
    return Residual(children, names, straight, over)
