"""Several models of equal structure, applied to the same input."""

from typing import Literal, SupportsIndex, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._check import check_choice
from .._stage import Passes, Scope, enter, own_state
from .._tree import as_arrays, combine, join_path
from .._types import AnyStage, Key, MaybeState, Output, PyTree
from .parallel import FOLDS, check_arrays
from .repeat import Makers, Stacked, read_stacked

Join: TypeAlias = Literal["mean", "sum", "max", "min", "prod", "stack"]
"""The merge of the outputs of the members."""


class Ensemble(Stacked):
    """Stages of equal structure under one `vmap`; see `ensemble`."""

    stages: AnyStage
    size: int = eqx.field(static=True)
    merge: str = eqx.field(static=True, default="mean")

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        stacked, rest = eqx.partition(self.stages, eqx.is_array)
        states, put_back = own_state(self.stages, state)
        index = None if scope.key is None else jnp.arange(self.size)
        passes = Passes(scope, self.size)
        constants = []

        def one(part, part_state, i):
            stage, inner = eqx.combine(part, rest), passes.begin()
            # The trace stands for all members; errors name the first.
            y, part_state = enter(inner, 0, stage, x, state=part_state, index=i)
            arrays, constant = eqx.partition(as_arrays(y), eqx.is_array)
            # `vmap` returns only arrays; other leaves, such as text, are returned this
            # way.
            constants.append(constant)
            return arrays, part_state, passes.arrays()

        every = jax.vmap(one, axis_size=self.size)
        y, states, values = every(stacked, states, index)
        passes.end(values)
        state = put_back(states)
        y = combine(y, constants[-1])
        if self.merge == "stack":
            return y, state
        path, merge = join_path(scope.path, 0), f'merge="{self.merge}"'
        check_arrays("ensemble", path, y, merge, ', or use `merge="stack"`.')
        over = FOLDS[self.merge].over
        return jtu.tree_map(lambda leaf: over(leaf, axis=0), y), state


def ensemble(
    make: Makers,
    n: SupportsIndex | None = None,
    *,
    key: Key | None = None,
    merge: Join = "mean",
) -> Ensemble:
    """Apply `n` models of equal structure to the same input and merge the outputs.

    Member `i` is `make(fold_in(key, i))`. The function is traced once, and the
    parameters are stacked, as in `repeat`; the members run together under `jax.vmap`.
    When called with a key, member `i` draws from `fold_in(key, i)`. Existing models are
    given as a list, without `n` and `key`.

    `.stages` is one stage with the stacked arrays of all members, for
    `equinox.filter_vmap`: `filter_vmap(loss)(pipe.stages, batches)` calls a function of
    a member and a batch for every member, each with its own batch.
    `eqx_pipe.sharding.shard(pipe, mesh, P("models"))` spreads the members over the
    devices of a mesh axis.

    **Arguments:**

    - `make`: a function of one key, by position or as the keyword `key`, that returns
        a stage; or a list of stages that differ in the values of their arrays only.
    - `n`: the number of members, at least 1.
    - `key`: a PRNG key for the parameters. (Keyword only.)
    - `merge`: `"mean"`, `"sum"`, `"max"`, `"min"` or `"prod"`, leaf by leaf over the
        members, or `"stack"`: all outputs, along a new leading axis. For any other
        merge, add a stage: `chain(ensemble(..., merge="stack"), stage)`. (Keyword
        only.)

    **Returns:** a stage, with the container methods of a `chain`; `[i]` is member `i`,
    `[:2]` an ensemble of the first two.

    **Shapes:** an array of a member of shape `(*a,)` is held as `(n, *a)`; an output
    leaf `(*b,)` of the members stays `(*b,)`, and becomes `(n, *b)` with `"stack"`.

    **Raises:**

    - `TypeError` if `make` is not a function of one key, or does not return a stage, or
      `n` is not an integer, or `key` is not a key, or either is given with a list; when
      called, if the merge cannot act on a leaf (text, keys).
    - `ValueError` if `n` is not positive, a list is empty, or `merge` is unknown.
    - `StructureError` (a `ValueError`) if members of a list differ in more than the
      values of arrays; the error names the first such leaf.

    **Laws:** with `merge="stack"`, `pipe(x, key=key)[i]` is `pipe[i](x,
    key=fold_in(key, i))`; `"mean"` is the mean of these, and so on.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> make = lambda key: eqx.nn.MLP(3, 2, 8, 1, key=key)
        >>> models = ep.ensemble(make, 5, key=jr.key(0), merge="stack")
        >>> ys = models(jnp.ones(3))
        >>> ys.shape, ys.std(axis=0).shape, len(models), models[0](jnp.ones(3)).shape
        ((5, 2), (2,), 5, (2,))
    """
    check_choice("ensemble", "merge", merge, get_args(Join))
    stages, size = read_stacked("ensemble", make, n, key, Ensemble.fewest)
    return Ensemble(stages, size, merge)
