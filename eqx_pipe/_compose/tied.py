"""Share a parameter or a stage between several places of a pipeline."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax.tree_util as jtu

from .._check import check_callable
from .._errors import structure_error, value_error
from .._stage import (
    Canvas,
    Composite,
    Scope,
    Wire,
    as_stage,
    call,
    is_composite,
    is_stateful,
)
from .._tree import differences
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike


class Elsewhere(eqx.Module):
    """The placeholder of a tied part, instead of Equinox's `SharedNode`.

    All placeholders are equal, so pipelines built alike are equal. `tree_at` needs the
    leaf. A Module keeps its type in a pytree of masks.
    """

    leaf: str = "tied"


class Tied(Composite):
    """A pipeline with shared parts; see `tied`."""

    shared: eqx.nn.Shared

    @property
    def pipe(self) -> AnyStage:
        """The pipeline with every tied part in place."""
        return self.shared()

    def children(self) -> Mapping[str, AnyStage]:
        """Return the children of the pipeline."""
        if not callable(self.shared.get):  # as in a pytree of masks
            return self.held()
        pipe = self.pipe
        return pipe.children() if is_composite(pipe) else {}

    def held(self) -> Mapping[str, AnyStage]:
        kept = self.shared.pytree
        return kept.children() if is_composite(kept) else {}

    def with_child(self, segment: str, stage: StageLike) -> "Tied":
        raise value_error(
            "tied",
            f"`{segment}` cannot be replaced here: parts of the pipeline are tied.",
            "Edit the pipeline, `.pipe`, and tie its parts again.",
        )

    def is_stateful(self) -> bool:
        return is_stateful(self.shared.pytree)  # also for a pytree of masks

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        return call(self.pipe, (x,), state, scope)

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        return canvas.inside(path, self.shared.pytree, wire)


def tied(
    pipe: StageLike,
    where: Callable[[PyTree], PyTree],
    get: Callable[[PyTree], PyTree],
) -> Tied:
    """Tie parts of a pipeline to other parts, so that they share one copy.

    A pipeline is a pytree: a layer that appears in two places is two layers, equal at
    first, which training changes separately. A tied part is stored once, in the place
    that `get` returns. Its gradient is the sum over all places; saved files, parameter
    counts and optimisers include it once.

    **Arguments:**

    - `pipe`: the pipeline.
    - `where`: a function from the pipeline to the part, or a tuple of parts, to drop,
        as for `equinox.tree_at`: a parameter, or a whole stage.
    - `get`: a function from the pipeline to the replacement, computed at each call:
        another part, or a function of it (`jnp.transpose(...)`).

    **Returns:** a stage with the paths and draws of `pipe`. Its `.pipe` is the pipeline
    with all parts in place, for `replace`; `.shared` is the underlying
    `equinox.nn.Shared`.

    **Raises:**

    - `TypeError` if `pipe` is not a stage, or `where` or `get` is not a function.
    - `StructureError` (a `ValueError`) if a part and its replacement differ in
      structure, shape or dtype.
    - `ValueError` if `get` returns a part that `where` drops.

    **Laws:** it equals `pipe` with equal parts, and the parts stay equal in training.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> a, b = jr.split(jr.key(0))
        >>> pipe = ep.tied(
        ...     ep.chain(embed=eqx.nn.Embedding(9, 4, key=a),
        ...              head=eqx.nn.Linear(4, 9, use_bias=False, key=b)),
        ...     where=lambda pipe: pipe["head"].weight,
        ...     get=lambda pipe: pipe["embed"].weight)
        >>> pipe(jnp.array(3)).shape, ep.summary(pipe).row.parameters
        ((9,), 36)

    ??? cite "Source"

        Press and Wolf, *Using the Output Embedding to Improve Language Models*, 2017,
        arXiv 1608.05859. For plain modules there is `equinox.nn.Shared`.
    """
    stage = as_stage("tied", "pipe", pipe)
    cure = 'Give a function of the pipeline: `lambda pipe: pipe["head"].weight`.'
    check_callable("tied", "where", where, cure)
    check_callable("tied", "get", get, cure)
    try:
        shared = eqx.nn.Shared(stage, where, get)
    except ValueError as error:
        text = "; ".join(differences(where(stage), get(stage))) or error
        raise structure_error(
            "tied",
            f"the parts that `where` and `get` return differ: {text}.",
            "Tie parts of the same structure, shapes and dtypes; `get` may transform "
            "them, as by `jnp.transpose`.",
        ) from error
    shared = eqx.tree_at(
        lambda s: where(s.pytree), shared, replace_fn=lambda _: Elsewhere()
    )
    try:
        replacement = get(shared.pytree)
    except Exception:  # it succeeds with the whole pipeline
        replacement = Elsewhere()
    if any(map(_is_elsewhere, jtu.tree_leaves(replacement, is_leaf=_is_elsewhere))):
        raise value_error(
            "tied",
            "`get` returns a part that `where` drops.",
            "Return from `where` the places to drop, and from `get` the one to keep.",
        )
    return Tied(shared)


def _is_elsewhere(leaf: object) -> bool:
    return isinstance(leaf, Elsewhere)
