"""`Training`, and the program that runs trainings with one structure as lanes."""

import collections
import contextlib
import functools as ft
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int

from .._check import check_callable, check_distinct, check_integers, check_same
from .._compiled import is_there
from .._errors import SweepError, bullets, describe_value, structure_error, type_error
from .._jaxprs import (
    Fingerprint,
    depends_on,
    digest,
    evaluate,
    fingerprint_of,
    live_bytes,
    trace,
)
from .._kernel import has_kernels
from .._keys import fold, key_argument, keyword_rule
from .._run import (
    TooLarge,
    check_finite,
    compiled,
    does_not_fit,
    error_text,
    explain,
    noting,
    quiet,
    stoppable,
)
from .._same import record_of
from .._spaces import Space
from .._sweep import Request
from .._tree import (
    as_arrays,
    as_data,
    as_keys,
    leaf_text,
    leaves_with_names,
    nbytes,
    path_name,
    struct_of,
)
from .._types import ClosedJaxpr, Key, PyTree
from .._vmap import flat_mesh, over_devices


class Training(eqx.Module):
    """A training: the functions that begin, continue and evaluate it.

    - `init(point)` returns the first carry: any pytree, such as a model with the state
      of its optimiser. Its arrays are trained; functions and other values stay as
      `init` returned them, and a `step` that changes one raises. Python numbers become
      arrays, except those in modules.
    - `step(point, carry)` returns `(carry, metrics)`: the next carry, with the same
      structure, shapes and dtypes, and a pytree of numbers and arrays, or `None`.
    - `evaluate(point, carry)`, if given, returns further metrics. It runs every `every`
      steps.

    `step` and `evaluate` may have a parameter `i`: the number of finished steps, an
    `int32` scalar. It is 0 in the first step, as in `for i in range(steps)`.

    Each may have a parameter `key`. From the key of the point, `own =
    space.point_key(index, key=key)`, `init` gets `fold_in(own, 0)`, and `step` gets
    `fold_in(own, i + 1)`. `evaluate` gets another key, which depends on the step, too.

    **Raises:** `TypeError` if one of them cannot be called.
    """

    init: Callable[..., PyTree]
    step: Callable[..., PyTree]
    evaluate: Callable[..., PyTree] | None = None

    def __check_init__(self) -> None:
        for name in FUNCTIONS:
            fn = getattr(self, name)
            if fn is not None:
                cure = f"Give a function: `{name}(point, ...)`."
                check_callable("Training", name, fn, cure)


FUNCTIONS = "init", "step", "evaluate"
"""The functions of a `Training`."""

_UNIT = 64
"""The most steps that an accelerator runs by itself: a loop of known length.

A GPU asks the host after each step of a loop whose length is data. A CPU does not, and
would only compile the step twice.
"""


def _unit_of(between: int) -> int:
    """Return a number of steps that divides those between two stops, if it can.

    From all of them a few are left otherwise, and a GPU asks the host after each.
    """
    whole = max(k for k in range(1, _UNIT + 1) if between % k == 0)
    return whole if 8 * whole > _UNIT else _UNIT


_BATCH = 256
"""The maximum number of trainings of a device in a turn, unless it is given.

Carries are as large as models, so a batch of all trainings may not fit into memory.
"""

_BUFFER_BYTES = 16 * 1024 * 1024
"""The maximum bytes of the records of one call, unless one record has more."""

_RETURNS = "`step` returned {}, not a pair of a carry and metrics."
_PAIR = "Return `(carry, metrics)`; without metrics, `(carry, None)`."
_OTHER = "`step` returned another carry than it got (before, after)"
_CHANGED = "`step` changed leaves of the carry that are not arrays (before, after)"
_UNCHANGED = (
    "Make it an array in `init`, such as `jnp.asarray(0)` for a counter, or return it "
    "as it was, and choose between functions with `jax.lax.switch`."
)
_OF_BEGIN = "`begin` has another carry than `init` returns (`begin`, `init`)"
_KEEP = "Return a carry with the same structure, shapes and dtypes as that of `init`."

Rows = Int[np.ndarray, " rows"]
Row: TypeAlias = Array | np.integer | int
"""The index of a training in the space, often traced."""

Columns = Mapping[str, np.ndarray]
"""Values of the axes by path, with an entry for each training of the space."""

Values = Mapping[str, Any]
"""Values of the axes of one training by path."""

Carries = list[Any]
"""The leaves of carries, PRNG keys as raw data, with an entry for each training.

The first ones are what `init` got: the index of a training, whose key it was, and the
values of the axes. They make the functions and other static parts of a carry again, so
whoever inherits the carry of another training inherits these parts, too.

On the devices, they may have more entries, which repeat the last training.
"""


class _Program(NamedTuple):
    """A program of all lanes, and the arrays that its functions close over."""

    jaxpr: ClosedJaxpr
    fingerprint: Fingerprint
    call: Any
    consts: list[Any]
    has_kernels: bool


class _Lane(NamedTuple):
    """A training: its point and key, the arrays of its carry, and the rest of it."""

    point: PyTree
    key: Key | None
    arrays: PyTree
    rest: PyTree

    @property
    def carry(self) -> PyTree:
        return eqx.combine(self.arrays, self.rest)


class _Turn(NamedTuple):
    """Trainings that ran together, by their position, their lanes, and the outputs."""

    rows: Rows
    lane: Rows
    out: list[Any]


class Together(Exception):
    """The error if trainings failed in one of several steps."""


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
        between: int = _UNIT,
    ):
        """Trace the program, which makes at most `most` records of `each` steps.

        The steps of a call are a multiple of `between`, as far as the buffer allows.
        """
        self._unit = np.int32(_unit_of(between))
        self.rows, self._each, self._key = rows, each, key
        self._training, self._space = training, request.space
        self._devices, self._mesh = len(request.devices), flat_mesh(request.devices)
        self._place = NamedSharding(self._mesh, P(self._mesh.axis_names))
        self._batch_size = None if request.batch_size == "auto" else request.batch_size
        self.point = point_maker(self._space, int(rows[0]))
        number = jax.ShapeDtypeStruct((), np.int32)
        # With such a dict JAX names the axis in messages: it is `point['lr']`.
        axes = {name: struct_of(x, drop=1) for name, x in columns.items()}
        lane_args = [number, collections.OrderedDict(axes)]
        self.init = self._program(self._begin, lane_args, [])
        self.structs = [*map(struct_of, self.init.jaxpr.out_avals)]
        once: Any = jax.make_jaxpr(self._once, return_shape=True)
        self._one, made = once(*lane_args, *self.structs)
        _, self.metrics, self.evaluations = made
        self.read = self._names_read(axes)
        size = sum(map(nbytes, self.metrics.values())) * len(rows)
        self._records = max(1, min(most, _BUFFER_BYTES // max(1, size)))
        plan = [number, number, jax.ShapeDtypeStruct((), np.bool_)]
        self._inputs = [*jtu.tree_leaves(lane_args), *self.structs]
        self.step = self._program(self._advance, [*lane_args, *self.structs], plan)

    def text(self) -> str:
        """Return the identity of the functions and of the arrays they hold.

        It does not depend on the number of records of a call, and so not on `steps`.
        """
        texts = *self.init.fingerprint.texts(), *fingerprint_of(self._one).texts()
        return digest("\n".join(texts))

    def carry(self, i: int, columns: Columns, carries: Carries) -> PyTree:
        """Return the carry of a training, with the static parts of its point."""
        at = np.searchsorted(self.rows, i)
        carried = [jnp.asarray(np.asarray(x)[at]) for x in carries]
        return self._lane(i, values_at(columns, i), carried).carry

    # ---- the programs --------------------------------------------------------------

    def _key_of(self, row: Row) -> Key | None:
        return self._space.point_key(row, key=self._key)

    def _first(self, row: Row, columns: Values) -> tuple[PyTree, PyTree]:
        """Return the first carry of a training: its arrays, and the rest of it."""
        init, point = self._training.init, self.point(columns.values())
        key = key_argument(init, fold(self._key_of(row), 0))
        return _parted(_called("init", init, point, **key), "init")

    def _lane(self, row: Row, columns: Values, carried: Sequence[Any]) -> _Lane:
        """Return a training from the leaves of its carry."""
        origin, *first = carried[: 1 + len(columns)]
        # XLA drops the first carry, whose static parts may hold traced numbers.
        like, rest = self._first(origin, dict(zip(columns, first, strict=True)))
        leaves, structure = jtu.tree_flatten(like)
        pairs = zip(carried[1 + len(columns) :], leaves, strict=True)
        arrays = structure.unflatten([as_keys(x, old) for x, old in pairs])
        return _Lane(self.point(columns.values()), self._key_of(row), arrays, rest)

    def _stepped(self, lane: _Lane, number: Array) -> tuple[PyTree, dict[str, Array]]:
        """Return the arrays of the carry after step `number`, and the metrics."""
        step = self._training.step
        keywords = key_argument(step, fold(lane.key, number))
        keywords |= _count("step", step, number - 1)
        was = _texts(lane.rest)
        out = _called("step", step, lane.point, lane.carry, **keywords)
        if not isinstance(out, tuple) or len(out) != 2:
            raise type_error("train", _RETURNS.format(describe_value(out)), _PAIR)
        after, rest = _parted(out[0], "step")
        check_same("train", _OTHER, lane.arrays, after, _KEEP)
        _check_rest(_CHANGED, was, _texts(rest), _UNCHANGED)
        return after, _named(out[1], "step")

    def _evaluated(self, lane: _Lane, number: Array) -> dict[str, Array]:
        """Return the metrics of `evaluate` after step `number`."""
        evaluate = self._training.evaluate
        if evaluate is None:
            return {}
        key = fold(fold(lane.key, number), "evaluate")
        keywords = key_argument(evaluate, key)
        keywords |= _count("evaluate", evaluate, number)
        metrics = _called("evaluate", evaluate, lane.point, lane.carry, **keywords)
        return _named(metrics, "evaluate")

    def _begin(self, row: Row, point: Values) -> list[Any]:
        return [row, *point.values(), *_raw(self._first(row, point)[0])]

    def _once(self, row: Row, point: Values, *carried: Any) -> tuple[Any, ...]:
        lane, first = self._lane(row, point, carried), jnp.int32(1)
        arrays, metrics = self._stepped(lane, first)
        return _raw(arrays), metrics, self._evaluated(lane, first)

    def _names_read(self, axes: Values) -> set[str]:
        """Return the axes that `step`, `evaluate` or static parts of carries read."""
        inputs, more = range(len(self._one.in_avals)), 1 + len(axes)

        def is_read(k: int) -> bool:
            return any(depends_on(self._one, [i in (k, k + more) for i in inputs]))

        return {name for k, name in enumerate(axes, 1) if is_read(k)}

    def _advance(self, row: Row, point: Values, *args: Any) -> list[Any]:
        *carried, start, stop, ending = args
        lane, each = self._lane(row, point, carried), np.int32(self._each)

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
            first = start + k * self._unit

            def step(j: Any, state: Any) -> Any:
                return one(first + j, state)

            return jax.lax.fori_loop(0, int(self._unit), step, state)

        rest = start
        if self._mesh.devices.flat[0].platform != "cpu":
            units = jax.lax.div(stop - start, self._unit)
            state = jax.lax.fori_loop(0, units, unit, state)
            rest = start + units * self._unit
        arrays, kept = jax.lax.fori_loop(rest, stop, one, state)

        def evaluate() -> dict[str, Any]:
            metrics = self._evaluated(lane._replace(arrays=arrays), stop)
            return {name: x[None] for name, x in metrics.items()}

        last = _zeros(self.evaluations, 1)
        if last:
            last = jax.lax.cond(ending, evaluate, lambda: last)
        made = carried[: 1 + len(point)]
        return [*made, *_raw(arrays), *jtu.tree_leaves(kept), *jtu.tree_leaves(last)]

    def _program(
        self, lane: Callable[..., Any], per_lane: list[Any], shared: list[Any]
    ) -> _Program:
        """Return the program of all lanes; `per_lane` are the arguments of each."""
        jaxpr = trace(lane, *per_lane, *shared)
        fingerprint = fingerprint_of(jaxpr)
        # Arrays that the functions close over are passed in, since compiling constants
        # takes long.
        held = len(fingerprint.constants)
        axes = [*[0] * len(jtu.tree_leaves(per_lane)), *[None] * len(shared)]

        def on_device(*args_of_all: Any) -> list[Any]:
            run = ft.partial(evaluate, jaxpr, args_of_all[:held])
            return jax.vmap(lambda *args: run(args), axes)(*args_of_all[held:])

        split = [False] * held + [axis == 0 for axis in axes]
        same = NamedSharding(self._mesh, P())
        shardings = [self._place if parted else same for parted in split]
        call = over_devices(on_device, self._mesh, split)
        call = jax.jit(call, in_shardings=shardings)
        consts = fingerprint.constants
        if is_there(self._mesh.devices.flat[0]):
            consts = [jax.device_put(x, same) for x in consts]
        return _Program(jaxpr, fingerprint, call, consts, has_kernels(jaxpr))

    def compiled(self, lanes: int | None = None) -> Any:
        """Return the program of steps, for some lanes of a device."""
        lanes = self._size(len(self.rows)) if lanes is None else lanes
        count, consts = lanes * self._devices, map(struct_of, self.step.consts)
        split = [jax.ShapeDtypeStruct((count, *x.shape), x.dtype) for x in self._inputs]
        plan = np.int32(0), np.int32(1), np.bool_(True)
        with noting(lanes):
            return self.step.call.lower(*consts, *split, *plan).compile()

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
        placed: Bool[np.ndarray, " trainings"],
        columns: Columns,
        carries: Carries,
        plan: Sequence[Any],
    ) -> tuple[Carries, Rows, dict[str, np.ndarray], dict[int, str]]:
        """Run `init`, or train by `step`, those of all trainings that are `active`.

        Returns the carries, the trainings that did not fail, their metrics, and the
        errors of the others. Metrics have an axis over the records of the call, those
        of `evaluate` over one. `plan` is the step to begin after, the last step, and
        whether to evaluate. Other trainings keep their carries.

        Those that are `placed` have a lane, also if they failed meanwhile: a failure
        moves no other training, which could change its bits. They run in turns of as
        many as have a lane; a turn that fails is repeated with halves of its trainings,
        until those that fail are known. Raises `Together` if some fail in a call of
        several steps.
        """
        whole, going = np.flatnonzero(placed[self.rows]), active[self.rows]
        if not going.any():
            return carries, whole[:0], {}, {}
        lanes = self._size(len(whole)) * self._devices
        values = [self.rows.astype(np.int32), *(x[self.rows] for x in columns.values())]
        failed, turns = dict[int, str](), list[_Turn]()
        parts = [whole[k : k + lanes] for k in range(0, len(whole), lanes)]
        todo = [(part, part[going[part]]) for part in parts if going[part].any()]
        for part, some in todo:
            # All parts have the same number of lanes, so that they run the same
            # program; those that are not asked for repeat one that is.
            at = np.concatenate([part, np.repeat(part[-1:], lanes - len(part))])
            at = np.where(np.isin(at, some), at, some[0])
            inputs = self._placed(at, values, carries if plan else ())
            args = [*program.consts, *inputs, *plan]
            with self._fitting(lanes // self._devices):
                lower = ft.partial(program.call.lower, *args)
                key = "train", lanes, self._mesh
                call = compiled([program.fingerprint], key, lower)
            try:
                fitting = self._fitting(lanes // self._devices)
                with stoppable("train", program.has_kernels), fitting, quiet():
                    out = jax.block_until_ready(call(*args))
                    check_finite(out)
            except SweepError:
                raise
            except Exception as error:
                if plan and plan[1] - plan[0] > 1:
                    raise Together from error
                half = len(some) // 2
                if half:  # compute each half, to find the trainings that fail
                    todo += [(part, some[:half]), (part, some[half:])]
                else:
                    failed[int(self.rows[some[0]])] = error_text(error)
            else:
                turns.append(_Turn(some, np.flatnonzero(np.isin(part, some)), out))
        leaves, moving = self._gathered(program, turns, carries), len(self.structs)
        done = np.sort(np.concatenate([whole[:0], *(turn.rows for turn in turns)]))
        metrics = zip([*self.metrics, *self.evaluations], leaves[moving:], strict=False)
        outputs = {name: leaf[done] for name, leaf in metrics}
        return leaves[:moving], self.rows[done], outputs, failed

    def _placed(
        self, at: Rows, values: Sequence[np.ndarray], carries: Sequence[Any]
    ) -> list[Array]:
        """Place the values of axes and the carries of the trainings `at` as lanes."""
        # Carries that are in place are not copied.
        ordered = (at == np.minimum(np.arange(len(at)), len(self.rows) - 1)).all()
        inputs: list[Any] = [x[at] for x in values]
        for x in carries:
            inputs.append(x if ordered and len(x) == len(at) else np.asarray(x)[at])
        return [jax.device_put(x, self._place) for x in inputs]

    def _gathered(
        self, program: _Program, turns: Sequence[_Turn], carries: Carries
    ) -> list[Any]:
        """Return the outputs of all trainings; those in no turn keep their carries."""
        stay = len(turns) == 1 and len(turns[0].rows) == len(self.rows)
        leaves: list[Any] = []
        for i, struct in enumerate(program.jaxpr.out_avals):
            if stay and i < len(self.structs):
                leaves.append(turns[0].out[i])  # on the devices
                continue
            leaf = np.zeros((len(self.rows), *struct.shape), struct.dtype)
            if i < len(carries):
                leaf[:] = np.asarray(carries[i])[: len(leaf)]
            for rows, lane, out in turns:
                leaf[rows] = np.asarray(out[i])[lane]
            leaves.append(leaf)
        return leaves

    @contextlib.contextmanager
    def _fitting(self, batch_size: int) -> Iterator[None]:
        """Raise a `SweepError` if there is too little memory."""
        try:
            with noting(batch_size):
                yield
        except TooLarge as error:
            raise does_not_fit("train", error, self._batch_size is not None) from error

    def _size(self, trainings: int) -> int:
        """Return the lanes of a device: full turns, halved as trainings stop.

        Each size is another program, so there are few.
        """
        if self._batch_size is not None:
            return self._batch_size
        each = -(-len(self.rows) // self._devices)
        size = -(-each // -(-each // _BATCH))
        while size > 1 and -(-size // 2) * self._devices >= trainings:
            size = -(-size // 2)
        return size

    def inherited(
        self, parents: Rows, carries: Carries, columns: Columns, renewed: Iterable[str]
    ) -> Carries:
        """Return carries of which each is that of a parent, an index in the space.

        For the axes that are `renewed`, static parts get the new values, too.
        """
        source = np.searchsorted(self.rows, parents[self.rows])
        if (source != np.arange(len(source))).any():
            carries = [np.asarray(x)[source] for x in carries]
        carries = [*carries]
        for k, (name, values) in enumerate(columns.items(), 1):
            if name in renewed:
                carries[k] = values[self.rows]
        return carries

    def begun(self, begin: Callable[[PyTree], PyTree], columns: Columns) -> Carries:
        """Return the carries that `begin` returns at each point."""
        made = []
        for i in self.rows:
            first = values_at(columns, i)
            carry = _called("begin", begin, self.point(first.values()))
            made.append(self.fitting(carry, i, first))
        firsts = self.rows.astype(np.int32), *(x[self.rows] for x in columns.values())
        return [*firsts, *map(np.stack, zip(*made, strict=True))]

    def fitting(self, carry: PyTree, row: Row, first: Values) -> list[np.ndarray]:
        """Return the leaves of a carry; raise unless it is one of this training."""
        arrays, rest = _parted(carry, "begin")
        like, made = self._first(row, first)
        # Functions in static data are made anew, so it is compared as far as it can be.
        a, b = (dict(leaves_with_names(x)) for x in (arrays, like))
        check_same("train", _OF_BEGIN, a, b, _KEEP)
        cure = "Let `init` make the functions and other static parts of this carry."
        a, b = (
            _texts(x) | {"": f"static data {record_of(x).digest[:8]}"}
            for x in (rest, made)
        )
        _check_rest(_OF_BEGIN, a, b, cure)
        return [*map(np.asarray, _raw(arrays))]


def values_at(columns: Columns, i: Any) -> dict[str, Array]:
    """Return the values of the axes of one training."""
    return {name: jnp.asarray(x[i]) for name, x in columns.items()}


def point_maker(space: Space, i: int) -> Callable[[Iterable[Any]], PyTree]:
    """Return a function from values of axes to a point like point `i`."""
    geometry = space.geometry
    made = geometry.structure.flatten_up_to(space.point(i))
    pairs = zip(geometry.leaf_indices, geometry.axes.values(), strict=True)
    axes = [leaf for leaf, axis in pairs if not axis.is_static]

    def point(columns: Iterable[Any]) -> PyTree:
        nodes, following = list(made), iter(columns)
        for index in axes:
            like, structure = jtu.tree_flatten(made[index])
            leaves = [as_keys(next(following), leaf) for leaf in like]
            nodes[index] = structure.unflatten(leaves)
        return geometry.structure.unflatten(nodes)

    return point


def _raw(arrays: PyTree) -> list[Any]:
    """Return the leaves of a carry; no weak types, so that all calls have the same."""
    leaves = map(as_data, jtu.tree_leaves(arrays))
    return [jax.lax.convert_element_type(x, x.dtype) for x in leaves]


def _zeros(structs: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {k: jnp.zeros((count, *s.shape), s.dtype) for k, s in structs.items()}


def _called(name: str, fn: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Call a function of the user; errors get a note that names it."""
    try:
        return fn(*args, **keywords)
    except Exception as error:
        explain("train", name, error)
        raise


def _count(name: str, fn: object, steps: Array) -> dict[str, Any]:
    """Return the number of finished steps as a keyword argument, if `fn` takes one."""
    takes, default = keyword_rule(fn, "i")
    if takes and default:
        wrong = f"`{name}` has a parameter `i` with a default, and `i` is the number "
        cure = "Leave out the default, or rename the parameter."
        raise type_error("train", f"{wrong}of finished steps.", cure)
    return {"i": steps} if takes else {}


def _texts(rest: PyTree) -> dict[str, str]:
    """Return a text of each leaf of a carry that is no array, by its path."""
    pairs = leaves_with_names(rest)
    return {name: f"{leaf_text(x)} #{record_of(x).digest[:8]}" for name, x in pairs}


def _check_rest(wrong: str, was: Any, now: Any, cure: str) -> None:
    """Raise for another leaf of a carry that is no array."""
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    if names:
        both = [(name, was.get(name, "none"), now.get(name, "none")) for name in names]
        lines = bullets(f"at `.{name}`: {a} against {b}" for name, a, b in both)
        raise structure_error("train", f"{wrong}:{lines}", cure)


def _parted(carry: PyTree, function: str) -> tuple[PyTree, PyTree]:
    """Return the arrays of a carry, and the rest.

    Numbers become arrays, except those in modules: a model may use one while it is
    traced, as a dropout uses its probability.
    """

    def arrays(path: Any, x: Any) -> Any:
        plain, rest = x, None
        if is_module(x):
            plain, rest = eqx.partition(x, lambda leaf: isinstance(leaf, np.ndarray))
        for name, leaf in leaves_with_names(plain):
            name = ".".join(filter(None, (path_name(path), name)))
            where = f" at `.{name}`" if name else ""
            check_integers("train", leaf, f"`{function}` returned a carry{where}")
        return eqx.combine(as_arrays(plain), rest)

    def is_module(x: object) -> bool:
        return isinstance(x, eqx.Module)

    carry = jtu.tree_map_with_path(arrays, carry, is_leaf=is_module)
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
        check_integers("train", leaf, f"`{function}` returned the metric `{name}`")
    return {name: jnp.asarray(as_data(jnp.asarray(leaf))) for name, leaf in pairs}
