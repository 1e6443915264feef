"""The laws of axes, reducers, loaders and search methods."""

import collections
import dataclasses
import functools as ft
import inspect
import itertools as it
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from ..._check import check_choice, check_int, check_is
from ..._data import Cursor, Loader
from ..._errors import describe_value, value_error
from ..._keys import check_key
from ..._reduce import (
    AbstractReducer,
    ReduceLike,
    Reducer,
    ReducerTree,
    as_reducers,
    pick,
)
from ..._results import Compared, SweepResult
from ..._search import Method, losses
from ..._spaces import MAX_LENGTH, Axis, Space, SpaceLike, as_space, settings_of
from ..._stage import as_module, identity
from ..._store import gaps_of
from ..._sweep import sweeper
from ..._tree import as_arrays, struct_of
from ..._types import Key, PyTree, StageLike
from .function import DRAWS, key_law
from .law import (
    USUAL,
    Broken,
    Call,
    Trial,
    Undecided,
    agree,
    agree_in_struct,
    agree_with_reference,
    as_numpy,
    check_laws,
    check_names,
    check_reference,
    law,
    laws_of,
    must_hold,
    must_work,
    stack,
)

_MOST = 16  # positions of a long axis that are checked

# A fair coin gives the same side for all keys once in two billion runs.
_NUM_KEYS = 32


@dataclasses.dataclass(frozen=True)
class AxisTrial:
    """An axis, and its values at up to 24 positions."""

    axis: Axis
    key: Key | None
    reference: Callable[[int], PyTree] | None = None

    @ft.cached_property
    def positions(self) -> list[int]:
        """Positions along the axis, including four at both ends."""
        n = len(self.axis)
        inner = [(n - 1) * i // (_MOST - 1) for i in range(_MOST)]
        return sorted({*inner, *range(min(4, n)), *range(max(n - 4, 0), n)})

    @ft.cached_property
    def plain(self) -> list[PyTree]:
        return self.values(self.axis)

    def values(self, axis: Axis) -> list[PyTree]:
        """Return the values at the positions, computed one by one."""
        need = "" if axis.needs_key else " without a key, as `needs_key` is False,"
        with must_work(f"a value{need}"):
            return [self.value(axis, jnp.int32(i)) for i in self.positions]

    def value(self, axis: Axis, i: jax.Array) -> PyTree:
        return as_arrays(axis.value(i, self.key if axis.needs_key else None))

    def traced(self, key: Key | None) -> PyTree:
        """Return the values at the positions, stacked, from one program."""
        trial = dataclasses.replace(self, key=key)
        positions = jnp.array(self.positions, jnp.int32)
        return jax.jit(jax.vmap(ft.partial(trial.value, self.axis)))(positions)

    @law("length", "it has a length, and a dim.")
    def length_law(self) -> None:
        with must_work("`len`"):
            n = len(self.axis)
        if not 1 <= n <= MAX_LENGTH:
            raise Broken(f"the length is {n}, and must be at least 1")
        dim = self.axis.dim
        if not (dim is None or (isinstance(dim, str) and dim)):
            raise Broken(f"`dim` is {dim!r}, not a name or None", "dim")

    @law("forms", "its values agree in structure, shapes and dtypes.")
    def forms_law(self) -> None:
        for i, value in zip(self.positions, self.plain, strict=True):
            labels = (f"at position {i}", "at position 0")
            agree_in_struct(value, self.plain[0], labels)

    @law("pure", "a value is the same each time, also after flattening the axis.")
    def pure_law(self) -> None:
        leaves, structure = jtu.tree_flatten(self.axis)
        again = jtu.tree_unflatten(structure, leaves)
        for axis, how in ((self.axis, "again"), (again, "after flattening")):
            agree(self.values(axis), self.plain, (how, "the first time"))

    @law("traced", "a value can be traced.")
    def traced_law(self) -> None:
        with must_work("a traced and vectorised position"):
            got = self.traced(self.key)
        agree(got, stack(self.plain), ("traced", "plain"), USUAL)

    @law("draws", "its draws depend on the position and on the key.")
    def draws_law(self) -> None:
        if not self.axis.needs_key or self.key is None or len(self.positions) < 2:
            return
        keys = jr.split(self.key, _NUM_KEYS)
        drawn = map(as_numpy, jtu.tree_leaves(jax.jit(jax.vmap(self.traced))(keys)))
        shape = (_NUM_KEYS, len(self.positions), -1)
        rows = np.concatenate([v.reshape(shape) for v in drawn], axis=-1)
        of_keys = len(np.unique(rows[:, 0], axis=0))
        of_positions = [len(np.unique(row, axis=0)) for row in rows]
        # Discrete draws with few values, such as those of a coin, are not judged.
        if of_keys > _NUM_KEYS // 2:
            for (i, a), (j, b) in it.combinations(enumerate(self.positions), 2):
                if (rows[:, i] == rows[:, j]).all():
                    raise Broken(f"positions {a} and {b} draw the same values")
        if of_keys == 1 and min(of_positions) > 2:
            raise Broken(f"{_NUM_KEYS} keys all draw the same values")

    @law("distinct", "integers at the end of a long axis are as distinct as others.")
    def distinct_law(self) -> None:
        arrays = jtu.tree_leaves(stack(self.plain))
        if len(self.axis) <= 2**24 or any(v.dtype.kind not in "iub" for v in arrays):
            return
        rows = [b"".join(v[i].tobytes() for v in arrays) for i in range(len(arrays[0]))]
        if len({*rows[:4]}) == 4 and len({*rows[-4:]}) < 4:
            what = "the last four positions give equal values; float32 numbers skip "
            what += "integers above 2**24, so keep the position an integer"
            raise Broken(what)

    @law("reference", "it agrees with the reference at each position.")
    def reference_law(self) -> None:
        if self.reference is not None:
            for i, value in zip(self.positions, self.plain, strict=True):
                wanted, where = self.reference(i), f"at position {i}"
                agree_with_reference(value, wanted, where)


def check_axis(
    axis: Axis,
    *,
    key: Key | None = None,
    reference: Callable[[int], PyTree] | None = None,
) -> None:
    """Check that an axis is a sequence that JAX can trace and vectorise.

    The laws: the axis has a length; its values agree in structure, shapes and dtypes; a
    value is the same in every call, traced and vectorised; the axis needs no key unless
    `needs_key` is True, and then different positions and keys give different values;
    flattening and unflattening preserves it. For a long axis, the values at both ends
    and at some positions between are checked.

    **Arguments:**

    - `axis`: an `Axis`.
    - `key`: a PRNG key, for an axis that needs one. (Keyword only.)
    - `reference`: a function from a position, an `int`, to the value there, such as
        `np.linspace(0, 1, 5).__getitem__`, which detects a wrong end. (Keyword only.)

    **Raises:** `AssertionError` if a law is broken; `TypeError` if `axis` is not an
    `Axis`; `ValueError` if the axis needs a key and `key` is None.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax
        >>> ept.check_axis(ep.Linspace(0, 1, 5), reference=lambda i: i / 4)
        >>> ept.check_axis(ep.Geomspace(1e-3, 1, 7))
        >>> ept.check_axis(ep.Random(jax.random.normal, 4), key=jax.random.key(0))
    """
    __tracebackhide__ = True
    cure = "Give an `Axis`: `Linspace(0, 1, 5)`, or an instance of your own."
    check_is("testing.check_axis", "axis", axis, Axis, cure)
    check_key("testing.check_axis", key)
    check_reference("testing.check_axis", reference)
    if axis.needs_key and key is None:
        wrong = "the axis draws its values, and `key` is None."
        cure = "Give `key=jax.random.key(0)`."
        raise value_error("testing.check_axis", wrong, cure)
    trial = AxisTrial(axis, key, reference)
    # The values of a static axis may have any type.
    laws = [AxisTrial.length_law] if axis.is_static else None
    check_laws("check_axis", "an axis", trial, type(axis).__name__, laws)


@dataclasses.dataclass(frozen=True)
class ReducerTrial:
    """A reducer with the values of `n` points, split into three ranges."""

    many: ReducerTree
    values: PyTree
    n: int
    reference: Callable[[PyTree], PyTree] | None = None

    @ft.cached_property
    def empty(self) -> list[PyTree]:
        """The state of no points."""
        first = jtu.tree_map(lambda leaf: struct_of(leaf[0]), self.values)
        return self.many.begin(first)

    def state(self, start: int, stop: int, ok: Any = None) -> Any:
        """Return the state of the points from `start` to `stop`."""
        part = jtu.tree_map(lambda leaf: leaf[start:stop], self.values)
        ok = jnp.ones(stop - start, bool) if ok is None else ok[start:stop]
        return self.many.absorb(self.empty, part, ok)

    def same(self, got: Any, wanted: Any, labels: tuple[str, str]) -> None:
        """Raise `Broken` if the results of two states differ."""
        got, wanted = (as_arrays(self.many.finish(s)) for s in (got, wanted))
        agree(got, wanted, labels, USUAL)

    def steps(self, start: int, stop: int) -> list[PyTree]:
        """Return the state of the points from `start` to `stop`, one by one."""
        states = list(self.empty)
        for i in range(start, stop):
            point = jtu.tree_map(lambda leaf, i=i: leaf[i : i + 1], self.values)
            for j, r in enumerate(self.many.reducers):
                states[j] = _with_point(r, states[j], point)
        return states

    @ft.cached_property
    def thirds(self) -> list[list[PyTree]]:
        """The states of three consecutive ranges, by `update` alone."""
        cuts = (0, max(1, self.n // 3), max(2, 2 * self.n // 3), self.n)
        return [self.steps(a, b) for a, b in it.pairwise(cuts)]

    # First, since a batch is merged of several stretches.
    @law("merge", "merged states of parts, also of no points, equal that of the whole.")
    def merge_law(self) -> None:
        (a, b, c), whole = self.thirds, self.steps(0, self.n)
        merge, empty = self.many.merge, self.empty
        merged = {
            "as (a b) c": merge(merge(a, b), c),
            "as a (b c)": merge(a, merge(b, c)),
            "with no points before": merge(empty, whole),
            "with no points after": merge(whole, empty),
        }
        for how, state in merged.items():
            self.same(state, whole, (how, "one by one"))
        labels = ("merged of two ranges without points", "of one")
        self.same(merge(empty, empty), empty, labels)

    @law("update", "points one by one give the same result as all at once.")
    def update_law(self) -> None:
        at_once = self.state(0, self.n)
        self.same(self.steps(0, self.n), at_once, ("one by one", "at once"))

    @law("failed", "points that failed do not count.")
    def failed_law(self) -> None:
        ok = jnp.arange(self.n) < self.n - 1
        got = self.state(0, self.n, ok)
        wanted = self.state(0, self.n - 1)
        self.same(got, wanted, ("with a failed point", "without it"))

    @law("jit", "compiled, it gives the same results.")
    def jit_law(self) -> None:
        ok, (a, b, _) = jnp.ones(self.n, bool), self.thirds
        absorb = jax.jit(lambda values: self.many.absorb(self.empty, values, ok))
        merge = jax.jit(lambda a, b: self.many.merge(a, b))
        self.same(absorb(self.values), self.state(0, self.n), ("under jit", "plain"))
        wanted = self.many.merge(a, b)
        self.same(merge(a, b), wanted, ("merged under jit", "plain"))

    @law("reference", "it agrees with the reference.")
    def reference_law(self) -> None:
        if self.reference is not None:
            got = self.many.finish(self.state(0, self.n))
            wanted = self.reference(self.values)
            agree_with_reference(got, wanted)


def _with_point(reducer: AbstractReducer, state: PyTree, point: PyTree) -> PyTree:
    """Return the state after a batch of one point, by `update` if it is defined."""
    if not isinstance(reducer, Reducer):
        return reducer.absorb(state, point, jnp.ones(1, bool))
    value = jtu.tree_map(lambda leaf: leaf[0], point)
    return reducer.update(state, pick("testing.check_reducer", reducer.by, value))


def check_reducer(
    reducer: ReduceLike,
    values: PyTree,
    *,
    reference: Callable[[PyTree], PyTree] | None = None,
) -> None:
    """Check that a reducer can be split, merged and compiled as in a sweep.

    The laws: merging is associative, with the empty state as its identity on both
    sides; points give the same result one by one, in one batch, or in parts; points
    that are not `ok` do not count; results are the same under `jit`. The results of
    `finish` are compared.

    **Arguments:**

    - `reducer`: a reducer such as `Mean()`, your own `Reducer(...)`, or a pytree of
        reducers.
    - `values`: outputs at a few points: a pytree of arrays with a leading axis of at
        least three points.
    - `reference`: a function of `values` that returns the same as the reducer, such as
        a NumPy function, which detects a wrong initial state or an overflow. (Keyword
        only.)

    **Raises:** `AssertionError` if a law is broken; `ValueError` if `values` has fewer
    than three points.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax.numpy as jnp
        >>> import numpy as np
        >>> ept.check_reducer(ep.reduce.Var(), jnp.array([1.0, 5.0, 2.0, 2.0]))
        >>> ept.check_reducer(ep.reduce.Max(), jnp.array([-2, -3, -1]),
        ...     reference=np.max)
    """
    __tracebackhide__ = True
    function = "testing.check_reducer"
    check_reference(function, reference)
    many = as_reducers(function, reducer)
    values = as_arrays(values)
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in jtu.tree_leaves(values)}
    if len(sizes) != 1 or min(sizes) < 3:
        wrong = f"`values` is {describe_value(values)}, with leading axes of the sizes "
        wrong += f"{sorted(sizes)}."
        cure = "Give outputs of at least three points, stacked along a leading axis."
        raise value_error(function, wrong, cure)
    trial = ReducerTrial(many, values, min(sizes), reference)
    check_laws("check_reducer", "a reducer", trial, type(reducer).__name__)


@dataclasses.dataclass(frozen=True)
class LoaderTrial:
    """A loader at the beginning of its first epoch."""

    loader: Loader
    key: Key
    reference: Callable[[int], PyTree] | None = None

    @ft.cached_property
    def cursor(self) -> Cursor:
        return self.loader.init(self.key)

    def records(self, **changes: Any) -> PyTree:
        """Return the records of an epoch, in one batch, with changed settings."""
        names = inspect.signature(Loader).parameters
        settings = {name: getattr(self.loader, name) for name in names}
        whole = {"batch_pipe": identity, "drop_remainder": False, "sharding": None}
        loader = Loader(**{**settings, **whole, **changes})

        def join(*leaves: Any) -> Any:
            return jnp.concatenate(leaves) if eqx.is_array(leaves[0]) else leaves[0]

        batches = map(as_arrays, loader.epoch(loader.init(self.key)))
        return jtu.tree_map(join, *batches)

    @law("pure", "the same cursor gives the same batch.")
    def pure_law(self) -> None:
        first, _ = self.loader.next(self.cursor)
        again, _ = self.loader.next(self.cursor)
        labels = ("the second time", "the first time")
        agree(as_arrays(again), as_arrays(first), labels)

    @law("records", "an epoch has every record once.")
    def records_law(self) -> None:
        as_it_is = {n: getattr(self.loader, n) for n in ("drop_remainder", "sharding")}
        in_epoch = _rows(self.records(pipe=identity, **as_it_is))
        in_source = _rows(self.records(pipe=identity, batch_size=1, shuffle=False))
        missing = (in_source - in_epoch).total()
        surplus = (in_epoch - in_source).total()
        if surplus or (missing and not self.loader.drop_remainder):
            what = f"{missing} of {in_source.total()} records are missing, and "
            raise Broken(f"{what}{surplus} occur too often")

    @law("reference", "its records agree with the reference, in order.")
    def reference_law(self) -> None:
        if self.reference is None:
            return
        records = self.records(pipe=identity, shuffle=False, batch_size=1)
        for i in range(len(jtu.tree_leaves(records)[0])):
            got = jtu.tree_map(lambda v, i=i: v[i], records)
            wanted, where = self.reference(i), f"in record {i}"
            agree_with_reference(got, wanted, where)
        if _goes_on(self.reference, len(self.loader.source)):
            what = f"the source has {len(self.loader.source)} records, the reference"
            raise Broken(f"{what} has one more")

    @law("resume", "a resumed epoch is the rest of the whole one.")
    def resume_law(self) -> None:
        epoch = self.loader.epoch(self.cursor)
        batches, cursors = [], []
        for batch in epoch:
            batches.append(as_arrays(batch))
            cursors.append(epoch.cursor)
        if len(batches) < 2:
            return
        middle = (len(batches) - 1) // 2
        rest = list(map(as_arrays, self.loader.epoch(cursors[middle])))
        labels = ("resumed", "uninterrupted")
        agree(rest, batches[middle + 1 :], labels, USUAL)

    @law("batches", "a record does not depend on the batch size.")
    def batches_law(self) -> None:
        single, several = self.records(batch_size=1), self.records()
        labels = (f"in batches of {self.loader.batch_size}", "in batches of 1")
        agree(several, single, labels, USUAL)

    @law("draws", "draws depend on the key, and differ between records.")
    def draws_law(self) -> None:
        record = jtu.tree_map(_row, self.records(pipe=identity, shuffle=False))
        with must_hold("`pipe`"):
            key_law.test(self._stage_trial(self.loader.pipe, record))
        size = min(self.loader.batch_size, len(self.loader.source))
        batch = self.records(shuffle=False)
        # The last record, since the first is often 0, which a factor does not change.
        alike = jtu.tree_map(lambda v: np.repeat(np.asarray(v)[-1:], size, 0), batch)
        trial = self._stage_trial(self.loader.batch_pipe, alike)
        with must_hold("`batch_pipe`"):
            key_law.test(trial)
        if trial.programs.primitives.isdisjoint(DRAWS) or size == 1:
            return
        other_key = jr.fold_in(self.key, 1)
        other = self._stage_trial(self.loader.batch_pipe, alike, other_key)
        first, second = (_arrays(t.plain["output"]) for t in (trial, other))
        same = all(map(np.array_equal, first, second))
        if not same and all((v == v[:1]).all() for v in first):
            what = "`batch_pipe` makes the same draw for all records of a batch; split "
            raise Broken(f"{what}its key: `jax.random.split(key, num_records)`")

    def _stage_trial(
        self, stage: StageLike, x: PyTree, key: Key | None = None
    ) -> Trial:
        stage_key = self.key if key is None else key
        return Trial(Call(as_module(stage), {"x": x}, None, stage_key, ("x",)))


def _goes_on(reference: Callable[[int], PyTree], n: int) -> bool:
    """Return whether a reference has a record `n`, but does not go on forever.

    A function such as `lambda i: 2 * i` has no end. An array of JAX has, and repeats
    its last record after it.
    """
    try:
        after = _arrays(reference(n))
    except Exception:
        return False
    try:
        far = _arrays(reference(n + 10**6))
    except Exception:
        return True
    last = _arrays(reference(n - 1))
    same = [all(map(np.array_equal, after, v)) for v in (far, last)]
    return same == [True, False]


def _arrays(tree: PyTree) -> list[np.ndarray]:
    return [as_numpy(v) for v in jtu.tree_leaves(as_arrays(tree)) if eqx.is_array(v)]


def _row(leaf: Any) -> Any:
    return leaf[0] if eqx.is_array(leaf) else leaf


def _rows(tree: PyTree) -> collections.Counter[bytes]:
    """Count each record, by its bytes."""
    arrays = _arrays(tree)
    rows = [b"".join(v[i].tobytes() for v in arrays) for i in range(len(arrays[0]))]
    return collections.Counter(rows)


def check_loader(
    loader: Loader,
    *,
    key: Key | None = None,
    reference: Callable[[int], PyTree] | None = None,
    skip: Collection[str] = (),
) -> None:
    """Check a loader, including its source and the stages of its pipes.

    The laws: an epoch has every record of the source once (fewer with
    `drop_remainder`); the same cursor gives the same batch; an epoch resumed in the
    middle has the remaining batches of the whole epoch; the output of `pipe` for a
    record does not depend on the batch size; draws of `pipe` and `batch_pipe` depend on
    their key, use no key twice, and differ between the records of a batch.

    **Arguments:**

    - `loader`: a `Loader` with few records, since several epochs are read.
    - `key`: a PRNG key for the cursor; by default `jax.random.key(0)`. (Keyword only.)
    - `reference`: a function from an index, an `int`, to the record of the source
        there, before any pipe, which detects a source with an off-by-one error. If it
        raises after its last record, as a list does, the lengths are compared, too.
        (Keyword only.)
    - `skip`: the names of laws to leave out, such as `("draws",)` for a `batch_pipe`
        that crops all images of a batch alike. (Keyword only.)

    **Raises:** `AssertionError` if a law is broken; `TypeError` if `loader` is not a
    `Loader`; `ValueError` for an unknown name in `skip`.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax.numpy as jnp
        >>> source = ep.data.ArraySource({"x": jnp.arange(6.0)})
        >>> ept.check_loader(ep.data.Loader(source, ep.at("x", jnp.sqrt), batch_size=4))
    """
    __tracebackhide__ = True
    function = "testing.check_loader"
    check_reference(function, reference)
    check_key(function, key)
    cure = "Give a `Loader(source, pipe, batch_size=...)`."
    check_is(function, "loader", loader, Loader, cure)
    epoch_key = jr.key(0) if key is None else key
    laws = laws_of(LoaderTrial)
    skipped = check_names(function, "skip", skip, [law.name for law in laws])
    laws = [law for law in laws if law.name not in skipped]
    trial = LoaderTrial(loader, epoch_key, reference)
    check_laws("check_loader", "a loader", trial, laws=laws)


_ROUNDS = 3

_SEARCHED = 8  # rounds of a search, or more for few points per round

_POINTS = 32

# Worse than the mean loss of points at random by this factor is worse than by chance.
_WORSE, _BETTER = 1.5, 0.9

_FAILS_ABOVE = 0.7


_LossOf: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""From the unit coordinates of points to their losses."""

_Round: TypeAlias = tuple[Any, Space, Any, tuple[np.ndarray, SweepResult]]
"""The state before, the points, the state after `ask`, and what `tell` gets."""


@dataclasses.dataclass(frozen=True)
class MethodTrial:
    """A method, with a function of a space's points."""

    method: Method[Any]
    space: Space
    run: Callable[[Space], SweepResult]
    num: int
    by: Compared
    key: Key | None
    expects: str | None = None

    @ft.cached_property
    def history(self) -> list[_Round]:
        """A few rounds, with the values of the function."""
        return list(self.rounds(_ROUNDS))

    def rounds(self, count: int, loss_of: _LossOf | None = None) -> Iterator[_Round]:
        """Yield rounds of a search; losses of unit coordinates may replace values."""
        state = self.method.init(self.space, self.key)
        for _ in range(count):
            points, asked = self.method.ask(state, self.num)
            if not points.size:
                return
            result = self.run(points)
            if loss_of is None:
                to_minimise = losses(result, self.by, "min")
            else:
                to_minimise = loss_of(self.space.to_unit(points))
                result = _with_losses(result, to_minimise)
            told = to_minimise, result
            yield state, points, asked, told
            state = self.method.tell(asked, *told)

    @law("form", "it proposes points of the space, at most `num`.")
    def form_law(self) -> None:
        for number, (_, points, _, _) in enumerate(self.history):
            if not isinstance(points, Space) or points.size > self.num:
                what = f"in round {number} `ask(state, {self.num})` gave {points!r}"
                raise Broken(what)
            with must_work(f"finding the points of round {number} in the space"):
                self.space.to_unit(points)

    @law("repeats", "the same calls, or a fresh start, give the same proposals.")
    def repeats_law(self) -> None:
        state = self.method.init(self.space, self.key)
        for number, (first, points, asked, told) in enumerate(self.history):
            for how, before in (("begun anew", state), ("asked again", first)):
                again, asked_again = self.method.ask(before, self.num)
                _same(f"{how} in round {number}", again, points)
            states = [self.method.tell(s, *told) for s in (asked_again, asked)]
            _same(f"after the same result again in round {number}", *states)
            state = states[0]

    @ft.cached_property
    def chance(self) -> np.ndarray:
        """Unit coordinates of random points, as the axes of the space round them."""
        count = len(self.space.axes())
        u = np.random.default_rng(0).uniform(size=(256, count))
        return self.space.to_unit(self.space.from_unit(u))

    def search(self, loss_of: _LossOf) -> list[np.ndarray]:
        """Return the unit coordinates of each round; the losses depend on them."""
        rounds = self.rounds(max(_SEARCHED, _POINTS // self.num), loss_of)
        return [self.space.to_unit(points) for _, points, _, _ in rounds]

    @ft.cached_property
    def minimising(self) -> list[np.ndarray]:
        return self.search(_distance)

    @ft.cached_property
    def is_adaptive(self) -> bool:
        """True if the losses change the proposals."""
        both = self.minimising, self.search(lambda u: 2.0 - _distance(u))
        first, second = ([u.tolist() for u in rounds] for rounds in both)
        return first != second

    @law("repeated", "rounds of a continuous space propose new points.")
    def repeated_law(self) -> None:
        if len(np.unique(self.chance, axis=0)) < len(self.chance):
            raise Undecided("the space has categories, which repeat")
        seen, twice, again = set[bytes](), 0, 0
        for u in self.minimising:
            rows = {row.tobytes() for row in u}
            twice += len(u) > 1 and 2 * len(rows) <= len(u)
            again += rows <= seen
            seen |= rows
        count = len(self.minimising)
        if 2 * again >= count > 1:
            what = "propose only points of earlier rounds; it may ignore the losses"
            raise Broken(f"{again} of {count} rounds {what}")
        if 2 * twice >= count:
            raise Broken(f"{twice} of {count} rounds propose points twice")

    @law("losses", "the losses lead to better points, not to worse ones.")
    def losses_law(self) -> None:
        strict = self.expects == "minimum"
        if not self.is_adaptive:
            if strict:
                raise Broken("the proposals do not depend on the losses")
            return
        mean, usual = self._late(self.minimising, _distance)
        if mean > (_BETTER if strict else _WORSE) * usual:
            raise Broken(
                f"late points have a mean loss of {mean:.3g}, and points at random "
                f"{usual:.3g}; the method has to minimise the losses"
            )

    def _late(self, rounds: list[np.ndarray], of: Any) -> tuple[float, float]:
        """Return the mean of a function at points of late rounds, and at random."""
        late = np.concatenate(rounds[len(rounds) // 2 :])
        return float(of(late).mean()), float(of(self.chance).mean())

    @law("failed", "it continues after failed points, and takes none for the best.")
    def failed_law(self) -> None:
        def fails(u: np.ndarray) -> np.ndarray:
            return u[:, 0] > _FAILS_ABOVE

        with must_work("a search in which points fail"):
            rounds = self.search(lambda u: np.where(fails(u), np.inf, _distance(u)))
        if not self.is_adaptive:
            return
        share, usual = self._late(rounds, fails)
        if share > max(2 / 3, 1.5 * usual):
            raise Broken(
                f"{share:.0%} of late points, and {usual:.0%} of points at random, are "
                "where all points fail; a NaN or infinite loss is the worst"
            )


def _distance(u: np.ndarray) -> np.ndarray:
    """Return the squared distance from a point inside the unit cube."""
    # Not in its middle, nor a simple fraction, where grids have points.
    return np.sum((u - (0.35 + 0.01 * np.arange(u.shape[1]))) ** 2, axis=1)


def _with_losses(result: SweepResult, losses: np.ndarray) -> SweepResult:
    """Return a result with other values, if these are single numbers."""
    ok = np.isfinite(losses)
    single = isinstance(result.values, np.ndarray) and result.values.ndim == 1
    values = np.where(ok, losses, np.nan) if single else result.values
    return dataclasses.replace(result, values=values, _gaps=gaps_of(ok))


def _same(how: str, got: PyTree, wanted: PyTree) -> None:
    """Raise `Broken` if points or states are not bitwise identical."""
    both = got, wanted
    got, wanted = (x.geometry.columns() if isinstance(x, Space) else x for x in both)
    agree(got, wanted, (how, "the first time"))


def check_method(
    method: Method[Any],
    fn: Callable[..., PyTree],
    space: SpaceLike,
    *,
    num: int = 4,
    by: Compared = None,
    key: Key | None = None,
    expects: Literal["minimum"] | None = None,
) -> None:
    """Check that a search method is reproducible, can be resumed, and searches.

    The laws: the method proposes points of the space, at most as many as requested.
    Repeated calls of `ask` and `tell` with the same arguments return the same, also
    after a new start. The method continues after a failed point, whose value is NaN.
    The other laws replace the values of `fn` by losses whose minimum is inside of the
    space: points of a continuous space are not repeated; if the losses change the
    proposals, these do not become worse than points at random; and they do not gather
    where all points fail.

    **Arguments:**

    - `method`: a method of `eqx_pipe.search`, or your own `Method`.
    - `fn`, `space`: a function and the space of its points, of which one replicate is
        evaluated, in three rounds of `num` points.
    - `num`: the number of points per round. (Keyword only.)
    - `by`: the output to minimise, as in `explore`. (Keyword only.)
    - `key`: a PRNG key for the method and for `fn`. (Keyword only.)
    - `expects`: `"minimum"` for a method that minimises: the losses must change its
        proposals, which must become better than points at random. By default also a
        design, random search or refinement keeps the laws. (Keyword only.)

    **Raises:** `AssertionError` if a law is broken; `TypeError` if `method` has no
    `init`, `ask` and `tell`.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept
        >>> space = {"x": ep.Uniform(0, 1)}
        >>> points = ep.search.Design([[0.5], [0.0], [1.0]])
        >>> ept.check_method(points, lambda p: p["x"] ** 2, space, num=2)
    """
    __tracebackhide__ = True
    function = "testing.check_method"
    cure = "Give an object with `init`, `ask` and `tell`."
    check_is(function, "method", method, Method, cure)
    check_int(function, "num", num, 1)
    if expects is not None:
        check_choice(function, "expects", expects, ("minimum",))
    (whole, _), runs = settings_of(function, as_space(function, space)), []

    def run(points: Space) -> SweepResult:
        if not runs:
            runs.append(sweeper(fn, points))
        return runs[0](points, key=key)

    trial = MethodTrial(method, whole, run, num, by, key, expects)
    check_laws("check_method", "a method", trial, type(method).__name__)
