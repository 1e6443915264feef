"""A pytree of reducers as one reducer, and the reduction of batches by it."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._check import check_distinct
from .._errors import bullets, describe_value, structure_error, type_error, value_error
from .._jit import arrays_of, program
from .._mesh_context import no_context, with_axis_types
from .._tree import leaf_text, leaves_with_names, path_name, struct_of
from .._types import PyTree
from .reducer import AbstractReducer, Ok

ReduceLike: TypeAlias = PyTree[AbstractReducer]
"""The type of `reduce`: a reducer or a pytree of them."""


class ReducerTree(eqx.Module):
    """Reducers that all get the whole output; a state is a list of their states."""

    reducers: list[AbstractReducer]
    structure: Any = eqx.field(static=True)

    def begin(self, struct: PyTree) -> list[PyTree]:
        """Return the state of no points, for outputs of these shapes and dtypes."""
        return [r.begin(struct) for r in self.reducers]

    def absorb(self, state: list[PyTree], values: PyTree, ok: Ok) -> list[PyTree]:
        """Return the state after a batch of outputs, of which the `ok` ones count."""
        both = zip(self.reducers, state, strict=True)
        return [r.absorb(s, values, ok) for r, s in both]

    def merge(self, first: list[PyTree], second: list[PyTree]) -> list[PyTree]:
        """Return the state of the points of both states."""
        three = zip(self.reducers, first, second, strict=True)
        return [r.merge(a, b) for r, a, b in three]

    def finish(self, state: list[PyTree]) -> PyTree:
        """Return the pytree with a result in place of each reducer."""
        both = zip(self.reducers, state, strict=True)
        results = [jtu.tree_map(_on_host, _finished(r, s)) for r, s in both]
        return jtu.tree_unflatten(self.structure, results)

    def finish_each(self, states: list[PyTree], count: int) -> PyTree:
        """Return the results of `count` states, both with a leading axis."""
        both = zip(self.reducers, states, strict=True)
        results = [r.finish_each(s, count) for r, s in both]
        return jtu.tree_unflatten(self.structure, results)

    def parts(self, results: PyTree) -> list[tuple[str, AbstractReducer, PyTree]]:
        """Return the path of each reducer, the reducer, and its part of the results."""
        numbers = jtu.tree_unflatten(self.structure, range(len(self.reducers)))
        paths = [name for name, _ in leaves_with_names(numbers)]
        parts = self.structure.flatten_up_to(results)
        return list(zip(paths, self.reducers, parts, strict=True))

    @property
    def over(self) -> tuple[str, ...] | None:
        """The dims that all reducers reduce; `None` for all points."""
        over: Any = self.reducers[0].over
        return over

    @property
    def stops(self) -> bool:
        """True if a reducer has a `stop`."""
        return any(r.stop is not None for r in self.reducers)

    def stop(self, state: list[PyTree]) -> bool:
        """Return whether the `stop` of any reducer is true for this state."""
        both = zip(self.reducers, state, strict=True)
        return any(r.stop is not None and bool(r.stop(s)) for r, s in both)

    def stop_each(self, states: list[PyTree], asked: np.ndarray) -> np.ndarray:
        """Return `stop` for each state along the leading axis.

        It is called for the states in `asked` only, and false for the others.
        """
        stops = np.zeros(len(asked), bool)
        for i in np.flatnonzero(asked):
            stops[i] = self.stop(jtu.tree_map(lambda leaf, i=i: leaf[i], states))
        return stops


def as_reducers(function: str, reduce: ReduceLike) -> ReducerTree:
    """Return a reducer or a pytree of reducers as one; raise for anything else."""
    leaves, structure = jtu.tree_flatten_with_path(reduce, is_leaf=is_reducer)
    for path, leaf in leaves:
        if is_reducer(leaf):
            continue
        name = path_name(path)
        where = f"`reduce` has at `.{name}`" if name else "`reduce` is"
        cure = "Give a reducer such as `Mean()`, `ArgMin(by='loss')`, your own "
        cure += "`Reducer(init, update, merge, finish)`, or a pytree of reducers."
        if inspect.isclass(leaf) and issubclass(leaf, AbstractReducer):
            cure = f"Make an instance of it: `{leaf.__name__}(...)`."
        wrong = f"{where} {describe_value(leaf)}, not a reducer."
        raise type_error(function, wrong, cure)
    if not leaves:
        raise type_error(
            function,
            f"`reduce` is {describe_value(reduce)}, which contains no reducer.",
            "Give one such as `Mean()`, or None to keep all values.",
        )
    check_distinct(function, "reducers", [path_name(path) for path, _ in leaves])
    reducers = [leaf for _, leaf in leaves]
    _check_over(function, reducers)
    return ReducerTree(reducers, structure)


def _check_over(function: str, reducers: Sequence[AbstractReducer]) -> None:
    """Raise a `ValueError` unless all reduce the same dims."""
    kinds = {r.over if r.over is None else frozenset(r.over): r for r in reducers}
    if len(kinds) > 1:
        shown = ", ".join(
            f"{type(r).__name__} over {'all points' if r.over is None else r.over}"
            for r in kinds.values()
        )
        raise value_error(
            function,
            f"the reducers differ in the dims that they reduce: {shown}.",
            "Give all of them the same `over=`, or sweep once for each.",
        )


def is_reducer(x: object) -> bool:
    """Return whether `x` is a reducer."""
    return isinstance(x, AbstractReducer)


def _finished(reducer: AbstractReducer, state: PyTree) -> PyTree:
    # Use the class: a module's bound method is a new module at each access, and making
    # it takes longer than most reducers take to finish.
    method = getattr(type(reducer), "finish", None)
    return reducer.finish(state) if method is None else method(reducer, state)


def _on_host(leaf: Any) -> Any:
    """Return an array in NumPy, unless it contains keys; anything else unchanged."""
    is_array = eqx.is_array(leaf) and not isinstance(leaf, np.ndarray)
    if not is_array or not isinstance(getattr(leaf, "dtype", None), np.dtype):
        return leaf
    return np.asarray(leaf)[()]


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
    return jtu.tree_map(lambda leaf: struct_of(leaf, drop=1), batch)
