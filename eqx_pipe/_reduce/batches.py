"""Statistics of batches, in one pass."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._errors import (
    bullets,
    describe_value,
    structure_error,
    type_error,
    value_error,
)
from .._jit import arrays_of, program
from .._mesh_context import no_context, with_axis_types
from .._tree import leaf_text, leaves_with_names
from .._types import PyTree
from .many import ReduceLike, ReducerTree, as_reducers


def reduce_batches(batches: Iterable[PyTree], reducers: ReduceLike) -> PyTree:
    """Reduce batches to statistics, in one pass and constant memory.

    Each entry along the leading axis of a batch counts once, also in a short last
    batch. The result equals that of the same reducers in `sweep`.

    **Arguments:**

    - `batches`: an iterable of batches, such as `loader.epoch(cursor)` for the rest of
        an epoch: pytrees of arrays, JAX's or NumPy's, with a common leading axis.
    - `reducers`: a reducer (`Mean`, `Var`, `Sum`, `Min`, `Max`, `ArgMin`, `ArgMax`,
        `TopK`, `Histogram`, `Quantile`, `Reducer`) or a pytree of them. A `stop` is
        called after each batch.

    **Returns:** the pytree of reducers with a reduction in place of each, as NumPy
    arrays. Indices count the entries of all batches in order.

    **Raises:**

    - `TypeError` if `batches` is not iterable, or `reducers` has another leaf.
    - `ValueError` if there is no batch.
    - `StructureError` (a `ValueError`) if the leaves of a batch have no common leading
      axis.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> loader = ep.data.Loader(ep.data.ArraySource(jnp.arange(5.0)), batch_size=2)
        >>> epoch = loader.epoch(loader.init(jax.random.key(0)))
        >>> statistics = {"mean": ep.reduce.Mean(), "largest": ep.reduce.Max()}
        >>> found = ep.reduce.reduce_batches(epoch, statistics)
        >>> float(found["mean"]), float(found["largest"])
        (2.0, 4.0)
    """
    if not isinstance(batches, Iterable):
        raise type_error(
            "reduce.reduce_batches",
            f"`batches` is {describe_value(batches)}.",
            "Give an iterable of batches, such as `loader.epoch(cursor)`.",
        )
    many = as_reducers("reduce.reduce_batches", reducers)
    state: PyTree = None
    with no_context():
        absorb, arrays = program(many, _absorb), arrays_of(many)
        for batch in batches:
            batch = with_axis_types(batch)
            if state is None:
                state = many.begin(_struct(batch))
            state = absorb(arrays, state, batch)
            if many.stops and many.stop(state):
                break
        if state is None:
            raise value_error(
                "reduce.reduce_batches",
                "`batches` is empty.",
                "Give at least one batch.",
            )
        return many.finish(state)


def _absorb(many: ReducerTree, state: PyTree, batch: PyTree) -> PyTree:
    count = jtu.tree_leaves(batch)[0].shape[0]
    return many.absorb(state, batch, jnp.ones(count, bool))


def _struct(batch: PyTree) -> PyTree:
    """Return the shapes and dtypes of one entry of a batch."""
    leaves = leaves_with_names(batch)
    sizes = {leaf.shape[:1] for _, leaf in leaves}
    if len(sizes) != 1 or () in sizes:
        lines = [f"`{name or 'batch'}`: {leaf_text(leaf)}" for name, leaf in leaves]
        raise structure_error(
            "reduce.reduce_batches",
            f"the leaves of a batch have no common leading axis:{bullets(lines)}",
            "Leave `batch_pipe` out, or let it return one entry for each record.",
        )
    return jtu.tree_map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch
    )
