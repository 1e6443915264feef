"""Statistics of what a loader gives, in one pass."""

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._errors import bullets, describe_value, structure_error, type_error
from .._reduce.many import Many, as_many
from .._sharding.mesh import no_context
from .._tree import leaf_text, leaves_with_names
from .._types import PyTree
from .cursor import Cursor
from .layout import with_axis_types
from .loader import Loader
from .programs import arrays_of, program


def reduce_loader(loader: Loader, cursor: Cursor, reducers: PyTree) -> PyTree:
    """Reduces the rest of an epoch to statistics, in one pass and constant memory.

    The records go through `pipe` and `batch_pipe` as in training; each entry along the
    leading axis of a batch counts once, in a short last batch too. The result is what
    the same reducers give in `sweep`.

    **Arguments:**

    - `loader`: a `Loader`, with or without shuffling.
    - `cursor`: where to begin, such as `loader.init(key)`; from the end of an epoch,
        it is the whole of the next one.
    - `reducers`: a reducer (`Mean`, `Var`, `Sum`, `Min`, `Max`, `ArgMin`, `ArgMax`,
        `TopK`, `Histogram`, `Reducer`) or a pytree of them. A `stop` is asked after
        each batch.

    **Returns:** the reductions, in the place of the reducers, as NumPy arrays. Indices
    count the records in the order in which they come.

    **Raises:**

    - `TypeError` if something is no loader or no reducer.
    - `StructureError` (a `ValueError`) if the leaves of a batch have no common leading
      axis.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> loader = ep.Loader(ep.ArraySource(jnp.arange(5.0)), batch_size=2)
        >>> statistics = {"mean": ep.Mean(), "largest": ep.Max()}
        >>> found = ep.reduce_loader(loader, loader.init(jax.random.key(0)), statistics)
        >>> float(found["mean"]), float(found["largest"])
        (2.0, 4.0)
    """
    if not isinstance(loader, Loader):
        raise type_error(
            "reduce_loader",
            f"`loader` is {describe_value(loader)}.",
            "Give a `Loader(source, batch_size=...)`.",
        )
    many = as_many("reduce_loader", reducers)
    state: PyTree = None
    with no_context():
        absorb, arrays = program(many, _absorb), arrays_of(many)
        for batch in loader.epoch(cursor):
            batch = with_axis_types(batch)
            if state is None:
                state = many.init(_struct(batch))
            state = absorb(arrays, state, batch)
            if many.stops and many.stop(state):
                break
        return many.finish(state)


def _absorb(many: Many, state: PyTree, batch: PyTree) -> PyTree:
    count = jtu.tree_leaves(batch)[0].shape[0]
    return many.absorb(state, batch, jnp.ones(count, bool))


def _struct(batch: PyTree) -> PyTree:
    """The form of one entry of a batch."""
    leaves = leaves_with_names(batch)
    sizes = {leaf.shape[:1] for _, leaf in leaves}
    if len(sizes) != 1 or () in sizes:
        lines = [f"`{name or 'batch'}`: {leaf_text(leaf)}" for name, leaf in leaves]
        raise structure_error(
            "reduce_loader",
            f"the leaves of a batch have no common leading axis:{bullets(lines)}",
            "Leave `batch_pipe` out, or let it return one entry for each record.",
        )
    return jtu.tree_map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch
    )
