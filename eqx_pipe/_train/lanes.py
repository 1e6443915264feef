"""`Training`, and the program that runs trainings with one structure as lanes."""

import functools as ft
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int

from .._check import check_callable, check_distinct, check_same
from .._compiled import is_there
from .._errors import describe_value, type_error
from .._jaxprs import (
    Fingerprint,
    array_text,
    digest,
    evaluate,
    fingerprint_of,
    live_bytes,
    trace,
)
from .._keys import fold, key_argument
from .._sweep import (
    Request,
    TooLarge,
    check_finite,
    compiled,
    does_not_fit,
    error_text,
    noting,
)
from .._tree import as_arrays, as_data, as_keys, leaves_with_names, nbytes, struct_of
from .._types import ClosedJaxpr, Key, PyTree
from .._vmap import flat_mesh, over_devices


class Training(eqx.Module):
    """A training: the functions that begin, continue and evaluate it.

    - `init(point)` returns the first carry: any pytree, such as a model with the state
      of its optimiser. Its arrays are trained; functions and other values stay as
      `init` returned them. Python numbers become arrays.
    - `step(point, carry)` returns `(carry, metrics)`: the next carry, with the same
      structure, shapes and dtypes, and a pytree of numbers and arrays, or `None`.
    - `evaluate(point, carry)`, if given, returns further metrics. It runs every `every`
      steps.

    Each may have a parameter `key`. From the key of the point, `own =
    space.point_key(i, key=key)`, `init` gets `fold_in(own, 0)`, and step `k`, counted
    from 1, gets `fold_in(own, k)`. `evaluate` gets another key, which depends on the
    step, too.

    **Raises:** `TypeError` if one of them cannot be called.
    """

    init: Callable[..., PyTree]
    step: Callable[..., PyTree]
    evaluate: Callable[..., PyTree] | None = None

    def __check_init__(self) -> None:
        for name in ("init", "step", "evaluate"):
            fn = getattr(self, name)
            if fn is not None:
                cure = f"Give a function: `{name}(point, ...)`."
                check_callable("Training", name, fn, cure)


_UNIT = 64
"""The steps that an accelerator runs by itself: a loop of known length.

A GPU asks the host after each step of a loop whose length is data. A CPU does not, and
would only compile the step twice.
"""

_BATCH = 256
"""The maximum number of trainings of a device in a turn, unless it is given.

Carries are as large as models, so a batch of all trainings may not fit into memory.
"""

_BUFFER_BYTES = 16 * 1024 * 1024
"""The maximum bytes of the records of one call, unless one record has more."""

_RETURNS = "`step` returned {}, not a pair of a carry and metrics."
_PAIR = "Return `(carry, metrics)`; without metrics, `(carry, None)`."
_OTHER = "`step` returned another carry than it got (before, after)"
_KEEP = "Return a carry with the same structure, shapes and dtypes as that of `init`."

Rows = Int[np.ndarray, " rows"]
Columns = Mapping[str, np.ndarray]
"""Values of the axes by path, with an entry for each training of the space."""

Carries = list[Any]
"""The leaves of carries, PRNG keys as raw data, with an entry for each training.

On the devices, they may have more entries, which repeat the last training.
"""


class _Program(NamedTuple):
    """A program of all lanes, and the arrays that its functions close over."""

    jaxpr: ClosedJaxpr
    fingerprint: Fingerprint
    call: Any
    consts: list[Any]


class _Lane(NamedTuple):
    """A training: its point and key, the arrays of its carry, and the rest of it."""

    point: PyTree
    key: Key | None
    arrays: PyTree
    rest: PyTree

    @property
    def carry(self) -> PyTree:
        return eqx.combine(self.arrays, self.rest)


class Lanes:
    """The trainings with the same values of `Static` axes, as lanes of one program.

    `rows` are their indices in the space. `structs`, `metrics` and `evaluations` have
    the shapes and dtypes of a carry, and of what `step` and `evaluate` return.
    """

    def __init__(
        self,
        training: Training,
        request: Request,
        key: Key | None,
        rows: Rows,
        columns: Columns,
        each: int,
        most: int,
    ):
        """Trace the program, which makes at most `most` records of `each` steps."""
        self.rows, self._each, self._key = rows, each, key
        self._training, self._space = training, request.space
        self._devices, self._mesh = len(request.devices), flat_mesh(request.devices)
        self._place = NamedSharding(self._mesh, P(self._mesh.axis_names))
        self._given = None if request.batch_size == "auto" else request.batch_size
        # The values of Static axes are those of the first point.
        geometry = self._space.geometry
        point = self._space.point(int(rows[0]))
        self._nodes = geometry.structure.flatten_up_to(point)
        pairs = zip(geometry.leaf_indices, geometry.axes.values(), strict=True)
        self._axes = [leaf for leaf, axis in pairs if not axis.is_static]
        number = jax.ShapeDtypeStruct((), np.int32)
        own = [number, *(struct_of(x, drop=1) for x in columns.values())]
        self.init = self._program(self._begin, own, [])
        self.structs = [*map(struct_of, self.init.jaxpr.out_avals)]
        once = jax.make_jaxpr(self._once, return_shape=True)
        self._one, made = once(*own, *self.structs)
        _, self.metrics, self.evaluations = made
        size = sum(map(nbytes, self.metrics.values())) * len(rows)
        self._records = max(1, min(most, _BUFFER_BYTES // max(1, size)))
        plan = [number, number, jax.ShapeDtypeStruct((), np.bool_)]
        self.step = self._program(self._advance, [*own, *self.structs], plan)

    def text(self) -> str:
        """Return the identity of the functions and of the arrays they hold.

        It does not depend on the number of records of a call, and so not on `steps`.
        """
        texts = []
        for found in (self.init.fingerprint, fingerprint_of(self._one)):
            texts += [found.text, *map(array_text, found.constants)]
        return digest("\n".join(texts))

    def point(self, columns: Iterable[Any]) -> PyTree:
        """Return a point with the given values of axes."""
        nodes, following = list(self._nodes), iter(columns)
        for index in self._axes:
            like, structure = jtu.tree_flatten(self._nodes[index])
            leaves = [as_keys(next(following), leaf) for leaf in like]
            nodes[index] = structure.unflatten(leaves)
        return self._space.geometry.structure.unflatten(nodes)

    def carry(self, i: int, columns: Columns, carries: Carries) -> PyTree:
        """Return the carry of a training, with the static parts of its point."""
        at, own = np.searchsorted(self.rows, i), columns.values()
        leaves = [jnp.asarray(np.asarray(x)[at]) for x in carries]
        return self._lane(i, [jnp.asarray(x[i]) for x in own], leaves).carry

    # ---- the programs --------------------------------------------------------------

    def _lane(self, row: Any, columns: Sequence[Any], leaves: Any = None) -> _Lane:
        """Return a training, whose arrays are those of `init`, or `leaves`."""
        point, init = self.point(columns), self._training.init
        own = self._space.point_key(row, key=self._key)
        first = None if own is None else jr.fold_in(own, 0)
        # XLA drops the first carry, whose static parts may hold traced numbers.
        arrays, rest = _parted(init(point, **key_argument(init, first)))
        if leaves is not None:
            like, structure = jtu.tree_flatten(arrays)
            pairs = zip(leaves, like, strict=True)
            arrays = structure.unflatten([as_keys(x, old) for x, old in pairs])
        return _Lane(point, own, arrays, rest)

    def _given_lane(self, row: Any, given: Sequence[Any]) -> _Lane:
        """Return a training from its columns, followed by the leaves of its carry."""
        width = len(given) - len(self.structs)
        return self._lane(row, given[:width], given[width:])

    def _stepped(self, lane: _Lane, number: Any) -> tuple[PyTree, dict[str, Array]]:
        """Return the arrays of the carry after step `number`, and the metrics."""
        step, key = self._training.step, lane.key
        key = None if key is None else jr.fold_in(key, number)
        out = step(lane.point, lane.carry, **key_argument(step, key))
        if not isinstance(out, tuple) or len(out) != 2:
            raise type_error("train", _RETURNS.format(describe_value(out)), _PAIR)
        after, _ = _parted(out[0])
        check_same("train", _OTHER, lane.arrays, after, _KEEP)
        return after, _named(out[1], "step")

    def _evaluated(self, lane: _Lane, number: Any) -> dict[str, Array]:
        """Return the metrics of `evaluate` after step `number`."""
        evaluate, key = self._training.evaluate, lane.key
        if evaluate is None:
            return {}
        key = None if key is None else fold(jr.fold_in(key, number), "evaluate")
        found = evaluate(lane.point, lane.carry, **key_argument(evaluate, key))
        return _named(found, "evaluate")

    def _begin(self, row: Any, *columns: Any) -> list[Any]:
        return _raw(self._lane(row, columns).arrays)

    def _once(self, row: Any, *given: Any) -> tuple[Any, ...]:
        lane, first = self._given_lane(row, given), jnp.int32(1)
        arrays, metrics = self._stepped(lane, first)
        return _raw(arrays), metrics, self._evaluated(lane, first)

    def _advance(self, row: Any, *given: Any) -> list[Any]:
        *own, start, stop, ending = given
        lane, each = self._given_lane(row, own), np.int32(self._each)

        begun = jax.lax.div(start, each)

        def one(i: Any, state: Any) -> Any:
            arrays, kept = state
            arrays, now = self._stepped(lane._replace(arrays=arrays), i + np.int32(1))
            # The last step of a record overwrites the others: a loop for each record
            # would copy the carry.
            at = jax.lax.div(i, each) - begun
            return arrays, {k: x.at[at].set(now[k]) for k, x in kept.items()}

        state = lane.arrays, _zeros(self.metrics, self._records)

        def unit(k: Any, state: Any) -> Any:
            first = start + k * np.int32(_UNIT)
            return jax.lax.fori_loop(0, _UNIT, lambda j, s: one(first + j, s), state)

        rest = start
        if self._mesh.devices.flat[0].platform != "cpu":
            units = jax.lax.div(stop - start, np.int32(_UNIT))
            state = jax.lax.fori_loop(0, units, unit, state)
            rest = start + units * np.int32(_UNIT)
        arrays, kept = jax.lax.fori_loop(rest, stop, one, state)

        def evaluate() -> dict[str, Any]:
            found = self._evaluated(lane._replace(arrays=arrays), stop)
            return {name: x[None] for name, x in found.items()}

        found = _zeros(self.evaluations, 1)
        if found:
            found = jax.lax.cond(ending, evaluate, lambda: found)
        return [*_raw(arrays), *jtu.tree_leaves(kept), *jtu.tree_leaves(found)]

    def _program(
        self, lane: Callable[..., Any], own: list[Any], shared: list[Any]
    ) -> _Program:
        """Return the program of all lanes; they have their `own` arguments."""
        jaxpr = trace(lane, *own, *shared)
        fingerprint = fingerprint_of(jaxpr)
        # Arrays that the functions close over are passed in, since compiling constants
        # takes long.
        held = len(fingerprint.constants)
        axes = [*[0] * len(own), *[None] * len(shared)]

        def on_device(*given: Any) -> list[Any]:
            run = ft.partial(evaluate, jaxpr, given[:held])
            return jax.vmap(lambda *args: run(args), axes)(*given[held:])

        split = [False] * held + [axis == 0 for axis in axes]
        same = NamedSharding(self._mesh, P())
        shardings = [self._place if parted else same for parted in split]
        call = over_devices(on_device, self._mesh, split)
        call = jax.jit(call, in_shardings=shardings)
        consts = fingerprint.constants
        if is_there(self._mesh.devices.flat[0]):
            consts = [jax.device_put(x, same) for x in consts]
        return _Program(jaxpr, fingerprint, call, consts)

    def compiled(self, columns: Columns, lanes: int | None = None) -> Any:
        """Return the program of steps, for some lanes of a device."""
        lanes = self._size(len(self.rows)) if lanes is None else lanes
        count, program = lanes * self._devices, self.step
        own = [jax.ShapeDtypeStruct((), np.int32)]
        own += [*(struct_of(x, drop=1) for x in columns.values()), *self.structs]
        split = [jax.ShapeDtypeStruct((count, *x.shape), x.dtype) for x in own]
        plan = np.int32(0), np.int32(1), np.bool_(True)
        consts = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.consts]
        with noting(lanes):
            return program.call.lower(*consts, *split, *plan).compile()

    @property
    def alive(self) -> int:
        """The bytes of the values of a lane that are needed at the same time."""
        return max(1, live_bytes(self.step.jaxpr))

    # ---- turns ---------------------------------------------------------------------

    def last(self, step: int) -> int:
        """Return the last step of a call after `step`, whose records fit the buffer."""
        return (step // self._each + self._records) * self._each

    def run(
        self,
        program: _Program,
        active: Bool[np.ndarray, " trainings"],
        columns: Columns,
        carries: Carries,
        plan: Sequence[Any],
    ) -> tuple[Carries, Rows, dict[str, np.ndarray], dict[int, str]]:
        """Run `init`, or train by `step`, those of all trainings that are `active`.

        Returns the carries, the trainings that did not fail, their metrics, and the
        errors of the others. Metrics have an axis over the records of the call, those
        of `evaluate` over one. `plan` is the step to begin after, the last step, and
        whether to evaluate. Other trainings keep their carries.
        """
        whole, moving = np.flatnonzero(active[self.rows]), len(self.structs)
        if not len(whole):
            return carries, whole, {}, {}
        lanes = self._size(len(whole)) * self._devices
        values = [self.rows.astype(np.int32), *(x[self.rows] for x in columns.values())]
        failed: dict[int, str] = {}
        found: list[tuple[Rows, list[Any]]] = []
        parts = [whole[k : k + lanes] for k in range(0, len(whole), lanes)]
        for part in parts:
            # All parts have the same number of lanes, the last training repeated, so
            # that they run the same program.
            at = np.concatenate([part, np.repeat(part[-1:], lanes - len(part))])
            # Carries that are in place are not copied.
            ordered = (at == np.minimum(np.arange(lanes), len(self.rows) - 1)).all()
            given = [*(x[at] for x in values)]
            for x in carries:
                given.append(x if ordered and len(x) == lanes else np.asarray(x)[at])
            own = [jax.device_put(x, self._place) for x in given]
            args = [*program.consts, *own, *plan]
            try:
                with noting(lanes // self._devices):
                    lower = ft.partial(program.call.lower, *args)
                    key = "train", lanes, self._mesh
                    call = compiled([program.fingerprint], key, lower)
                    out = jax.block_until_ready(call(*args))
                    check_finite(out)
                found.append((part, out))
            except TooLarge as error:
                raise does_not_fit("train", error, self._given is not None) from error
            except Exception as error:
                half = len(part) // 2
                if half:  # compute each half, to find the trainings that fail
                    parts += [part[:half], part[half:]]
                else:
                    failed[int(self.rows[part[0]])] = error_text(error)
        stay = len(found) == 1 and len(found[0][0]) == len(self.rows)
        leaves: list[Any] = []
        for i, struct in enumerate(program.jaxpr.out_avals):
            if stay and i < moving:
                leaves.append(found[0][1][i])  # on the devices
                continue
            leaf = np.zeros((len(self.rows), *struct.shape), struct.dtype)
            if i < len(carries):
                leaf[:] = np.asarray(carries[i])[: len(leaf)]
            for at, out in found:
                leaf[at] = np.asarray(out[i])[: len(at)]
            leaves.append(leaf)
        done = np.sort(np.concatenate([whole[:0], *(part for part, _ in found)]))
        metrics = zip([*self.metrics, *self.evaluations], leaves[moving:], strict=False)
        outputs = {name: leaf[done] for name, leaf in metrics}
        return leaves[:moving], self.rows[done], outputs, failed

    def _size(self, trainings: int) -> int:
        """Return the lanes of a device: full turns, halved as trainings stop.

        Each size is another program, so there are few.
        """
        if self._given is not None:
            return self._given
        each = -(-len(self.rows) // self._devices)
        size = -(-each // -(-each // _BATCH))
        while size > 1 and -(-size // 2) * self._devices >= trainings:
            size = -(-size // 2)
        return size

    def inherited(self, parents: Rows, carries: Carries) -> Carries:
        """Return carries of which each is that of a parent, an index in the space."""
        source = np.searchsorted(self.rows, parents[self.rows])
        if (source == np.arange(len(source))).all():
            return carries
        return [np.asarray(x)[source] for x in carries]


def _raw(arrays: PyTree) -> list[Any]:
    """Return the leaves of a carry; no weak types, so that all calls have the same."""
    leaves = map(as_data, jtu.tree_leaves(arrays))
    return [jax.lax.convert_element_type(x, x.dtype) for x in leaves]


def _zeros(structs: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {k: jnp.zeros((count, *s.shape), s.dtype) for k, s in structs.items()}


def _parted(carry: PyTree) -> tuple[PyTree, PyTree]:
    """Return the arrays of a carry, and the rest.

    Numbers become arrays, except those in modules: a model may use one while it is
    traced, as a dropout uses its probability.
    """

    def arrays(x: Any) -> Any:
        if isinstance(x, eqx.Module):
            numpy, rest = eqx.partition(x, lambda leaf: isinstance(leaf, np.ndarray))
            return eqx.combine(as_arrays(numpy), rest)
        return as_arrays(x)

    carry = jtu.tree_map(arrays, carry, is_leaf=lambda x: isinstance(x, eqx.Module))
    return eqx.partition(carry, eqx.is_array)


def _named(metrics: PyTree, function: str) -> dict[str, Array]:
    """Return metrics by path, the only one as `value`."""
    pairs = [(name or "value", leaf) for name, leaf in leaves_with_names(metrics)]
    check_distinct("train", f"metrics of `{function}`", [name for name, _ in pairs])
    for name, leaf in pairs:
        if not eqx.is_array_like(leaf):
            wrong = f"`{function}` returned {describe_value(leaf)} as the metric "
            cure = "Metrics are numbers, arrays and pytrees of them."
            raise type_error("train", f"{wrong}`{name}`.", cure)
    return {name: jnp.asarray(as_data(jnp.asarray(leaf))) for name, leaf in pairs}
