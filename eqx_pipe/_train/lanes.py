"""The program of trainings with one structure, and the turns in which it runs."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Int

from .._check import check_distinct
from .._jaxprs import array_text, as_function, digest, fingerprint_of, trace
from .._spaces import Space
from .._sweep import TooLarge, does_not_fit, error_text, noting
from .._tree import as_data, as_hashable, as_keys, nbytes, struct_of
from .._types import ClosedJaxpr, Device, Key, PyTree
from .._vmap import flat_mesh, over_devices
from .training import Training, begun, evaluated, stepped

_BATCH = 256
"""The maximum number of trainings of a device in a turn, unless it is given.

Carries are as large as models, so a batch of all trainings may not fit into memory.
"""

_BUFFER_BYTES = 16 * 1024 * 1024
"""The maximum bytes of the records of one call, unless one record has more."""

Rows = Int[np.ndarray, " rows"]


class Lanes:
    """The trainings with the same values of `Static` axes, as lanes of one program.

    `rows` are their indices in the space, and `carries` the arrays of their carries,
    PRNG keys as raw data, with an axis over the trainings. On the devices, these may
    have more rows, which repeat the last training.
    """

    def __init__(
        self,
        training: Training,
        space: Space,
        key: Key | None,
        rows: Rows,
        devices: Sequence[Device],
        batch_size: int | None,
    ):
        self.training, self.space, self.key, self.rows = training, space, key, rows
        self._given, self._devices = batch_size, devices
        self._mesh = flat_mesh(devices)
        self._split = NamedSharding(self._mesh, P(self._mesh.axis_names))
        self._whole = NamedSharding(self._mesh, P())
        self.carries: list[Any] = []
        # These are known when the programs are traced.
        self.structs: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.evaluations: dict[str, Any] = {}
        self.records = 1
        self._programs: dict[str, tuple[ClosedJaxpr, Any, list[Any]]] = {}
        # The values of Static axes are those of the first point.
        geometry = space.geometry
        self._structure = geometry.structure
        self._nodes = self._structure.flatten_up_to(space.point(int(rows[0])))
        self._axes = {
            name: index
            for name, index in zip(geometry.names, geometry.leaf_indices, strict=True)
            if not geometry.axes[name].is_static
        }
        digits = geometry.digits(rows)
        self.columns: dict[str, np.ndarray] = {}
        for name, dim in zip(geometry.names, geometry.axis_dims, strict=True):
            if name in self._axes:
                few, back = np.unique(digits[:, dim], return_inverse=True)
                for column, value in geometry.axis_values(name, few):
                    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
                    self.columns[column] = value[back].astype(dtype)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self._devices)

    def frozen(self) -> "Lanes":
        """Return a copy whose carries do not change."""
        other = copy.copy(self)
        other.carries = list(self.carries)
        return other

    def point(self, columns: Mapping[str, Any]) -> PyTree:
        """Return a point with the given values of axes, by the name of the column."""
        nodes, following = list(self._nodes), iter(columns.values())
        for index in self._axes.values():
            like, structure = jtu.tree_flatten(self._nodes[index])
            leaves = [as_keys(next(following), leaf) for leaf in like]
            nodes[index] = structure.unflatten(leaves)
        return self._structure.unflatten(nodes)

    def own_key(self, row: Any) -> Key | None:
        """Return the key of a training."""
        return self.space.point_key(row, key=self.key)

    def carry(self, columns: Mapping[str, np.ndarray], at: int) -> PyTree:
        """Return the carry of a training, with the static parts of its point."""
        point = self.point({name: jnp.asarray(x[at]) for name, x in columns.items()})
        arrays, rest = begun(self.training, point, self.own_key(int(self.rows[at])))
        like, structure = jtu.tree_flatten(arrays)
        pairs = zip(self.carries, like, strict=True)
        leaves = [as_keys(jnp.asarray(np.asarray(x)[at]), old) for x, old in pairs]
        return eqx.combine(structure.unflatten(leaves), rest)

    # ---- the program ---------------------------------------------------------------

    def prepare(self, records: int) -> None:
        """Trace the programs; a call records the metrics of at most `records` steps."""
        row = jax.ShapeDtypeStruct((), np.int32)
        columns = [struct_of(x, drop=1) for x in self.columns.values()]

        def first(row: Any, *columns: Any) -> list[Any]:
            point = self.point(dict(zip(self.columns, columns, strict=True)))
            arrays, _ = begun(self.training, point, self.own_key(row))
            return [jnp.asarray(as_data(x)) for x in jtu.tree_leaves(arrays)]

        self._add("init", first, [row, *columns], [])
        self.structs = jax.eval_shape(first, row, *columns)
        plan = [jax.ShapeDtypeStruct((), np.int32)] * 3 + [
            jax.ShapeDtypeStruct((), np.bool_)
        ]
        self._trace_steps([row, *columns, *self.structs], plan, 1)
        each = sum(map(nbytes, self.metrics.values())) * len(self.rows)
        self.records = max(1, min(records, _BUFFER_BYTES // max(1, each)))
        if self.records > 1:
            self._trace_steps([row, *columns, *self.structs], plan, self.records)

    def _trace_steps(self, own: list[Any], plan: list[Any], records: int) -> None:
        training, width = self.training, len(self.columns)

        def advance(row: Any, *rest: Any) -> list[Any]:
            columns, leaves = rest[:width], rest[width:-4]
            start, each, count, ending = rest[-4:]
            point = self.point(dict(zip(self.columns, columns, strict=True)))
            own = self.own_key(row)
            # XLA drops this first carry; its static parts may hold traced numbers.
            arrays, static = begun(training, point, own)
            like, structure = jtu.tree_flatten(arrays)
            pairs = zip(leaves, like, strict=True)
            arrays = structure.unflatten([as_keys(x, old) for x, old in pairs])

            def one(i: Any, state: Any) -> Any:
                return stepped(training, point, own, (state[0], static), i + 1)

            def zeros(tree: Any) -> Any:
                return jtu.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), tree)

            self.metrics = jax.eval_shape(lambda a: one(start, (a,))[1], arrays)
            none = zeros(self.metrics)

            def record(r: Any, state: Any) -> Any:
                arrays, kept = state
                begin = start + r * each
                arrays, now = jax.lax.fori_loop(
                    begin, begin + each, one, (arrays, none)
                )
                return arrays, jtu.tree_map(lambda k, x: k.at[r].set(x), kept, now)

            kept = jtu.tree_map(lambda x: jnp.zeros((records, *x.shape), x.dtype), none)
            arrays, kept = jax.lax.fori_loop(0, count, record, (arrays, kept))

            def evaluate(arrays: PyTree) -> Any:
                end = start + count * each
                return evaluated(training, point, own, eqx.combine(arrays, static), end)

            self.evaluations = jax.eval_shape(evaluate, arrays)
            found: Any = zeros(self.evaluations)
            if found:
                found = jax.lax.cond(ending, evaluate, lambda _: found, arrays)
            raw = [as_data(x) for x in jtu.tree_leaves(arrays)]
            # A dict is flattened by its sorted keys.
            return [*raw, *kept.values(), *found.values()]

        self._add("step", advance, own, plan)
        names = [*self.metrics, *self.evaluations]
        check_distinct("train", "metrics of `step` and `evaluate`", names)

    def _add(
        self, name: str, lane: Callable[..., Any], own: list[Any], shared: list[Any]
    ) -> None:
        jaxpr = trace(lane, *own, *shared)
        # Arrays that the functions close over are passed in, since compiling constants
        # takes long.
        held = list(jaxpr.consts)
        split = [False] * len(held) + [True] * len(own) + [False] * len(shared)
        axes = [0 if parted else None for parted in split[len(held) :]]

        def on_device(*given: Any) -> list[Any]:
            run = as_function(jaxpr, given[: len(held)])
            return jax.vmap(run, axes)(*given[len(held) :])

        program: Any = on_device
        if len(self._devices) > 1:
            program = over_devices(on_device, self._mesh, split)
        consts = [jax.device_put(x, self._whole) for x in held]
        self._programs[name] = jaxpr, jax.jit(program), consts

    def text(self) -> str:
        """Return the identity of the programs and of the arrays they hold."""
        texts = []
        for name, (jaxpr, _, _) in self._programs.items():
            found = fingerprint_of(jaxpr)
            texts += [name, found.text, *map(array_text, found.constants)]
        return digest("\n".join(texts))

    # ---- turns ---------------------------------------------------------------------

    def begin(self) -> dict[int, str]:
        """Make the first carries; return the error of each training that failed."""
        return self._run("init", np.arange(len(self.rows)), self.columns, ())[1]

    def advance(
        self, active: Rows, columns: Mapping[str, np.ndarray], plan: Sequence[Any]
    ) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        """Train the `active` trainings, and return their records and errors.

        `plan` is the step to begin after, the steps of a record, the number of records,
        and whether to evaluate. Carries of failed trainings stay what they were.
        """
        outputs, failed = self._run("step", active, columns, plan)
        return dict(zip((*self.metrics, *self.evaluations), outputs, strict=True)), (
            failed
        )

    def _run(
        self,
        name: str,
        active: Rows,
        columns: Mapping[str, np.ndarray],
        plan: Sequence[Any],
    ) -> tuple[list[np.ndarray], dict[int, str]]:
        count, moving = len(self.rows), len(self.structs)
        lanes = self._size(len(active)) * len(self._devices)
        failed: dict[int, str] = {}
        found: list[tuple[Rows, list[Any]]] = []
        for k in range(0, len(active), lanes):
            self._attempt(
                name, active[k : k + lanes], lanes, columns, plan, found, failed
            )
        if len(found) == 1 and len(active) == count and not failed:
            carries = found[0][1][:moving]  # stay on the devices
        else:
            made = [(at, [np.asarray(x) for x in out[:moving]]) for at, out in found]
            carries = [np.asarray(x)[:count].copy() for x in self.carries] or [
                np.zeros((count, *s.shape), s.dtype) for s in self.structs
            ]
            for at, out in made:
                for leaf, x in zip(carries, out, strict=True):
                    leaf[at] = x[: len(at)]
        self.carries = list(carries)
        if name == "init":
            return [], failed
        row = [*self.metrics.values(), *self.evaluations.values()]
        outputs = []
        for i, struct in enumerate(row):
            is_metric = i < len(self.metrics)
            shape = (self.records, *struct.shape) if is_metric else struct.shape
            leaf = np.zeros((count, *shape), struct.dtype)
            for at, out in found:
                leaf[at] = np.asarray(out[moving + i])[: len(at)]
            outputs.append(leaf)
        return outputs, failed

    def _attempt(
        self,
        name: str,
        part: Rows,
        lanes: int,
        columns: Mapping[str, np.ndarray],
        plan: Sequence[Any],
        found: list[tuple[Any, list[Any]]],
        failed: dict[int, str],
    ) -> None:
        """Compute a part of the trainings; if it fails, halves of it.

        All parts have the same number of lanes, the last training repeated, so that
        they run the same program.
        """
        at = np.concatenate([part, np.repeat(part[-1:], lanes - len(part))])
        _, program, consts = self._programs[name]
        own = [self.rows[at].astype(np.int32), *(x[at] for x in columns.values())]
        if name == "step":
            own += [self._lanes_of(leaf, at) for leaf in self.carries]
        own = [jax.device_put(x, self._split) for x in own]
        try:
            with noting(lanes // len(self._devices)):
                out = jax.block_until_ready(program(*consts, *own, *plan))
        except TooLarge as error:
            raise does_not_fit("train", error, self._given is not None) from error
        except Exception as error:
            if len(part) == 1:
                failed[int(part[0])] = error_text(error)
                return
            half = len(part) // 2
            for some in (part[:half], part[half:]):
                self._attempt(name, some, lanes, columns, plan, found, failed)
            return
        found.append((part, list(out)))

    def _lanes_of(self, leaf: Any, at: Rows) -> Any:
        """Return the carries of some trainings, without a copy if they are in place."""
        last = len(self.rows) - 1
        if len(leaf) == len(at) and (at == np.minimum(np.arange(len(at)), last)).all():
            return leaf
        return np.asarray(leaf)[at]

    def _size(self, trainings: int) -> int:
        """Return the lanes of a device: full turns, halved as trainings stop.

        Each size is another program, so there are few.
        """
        if self._given is not None:
            return self._given
        devices = len(self._devices)
        each = -(-len(self.rows) // devices)
        size = -(-each // -(-each // _BATCH))
        while size > 1 and -(-size // 2) * devices >= trainings:
            size = -(-size // 2)
        return size

    def inherit(self, source: Rows) -> None:
        """Let each training continue from the carry of another."""
        if (source != np.arange(len(source))).any():
            self.carries = [np.asarray(x)[source] for x in self.carries]


def groups_of(
    training: Training,
    space: Space,
    key: Key | None,
    devices: Sequence[Device],
    batch_size: int | None,
) -> list[Lanes]:
    """Return the trainings of each combination of the values of `Static` axes."""
    geometry, group = space.geometry, np.zeros(space.size, np.int64)
    digits = geometry.digits(np.arange(space.size))
    for name, dim in zip(geometry.names, geometry.axis_dims, strict=True):
        axis: Any = geometry.axes[name]
        if axis.is_static:
            values = [as_hashable(axis.value(i, None)) for i in range(len(axis))]
            first = np.array([values.index(value) for value in values])
            group = group * len(axis) + first[digits[:, dim]]
            # Number the groups again, so that their numbers stay small.
            group = np.unique(group, return_inverse=True)[1]
    return [
        Lanes(training, space, key, np.flatnonzero(group == g), devices, batch_size)
        for g in range(int(group.max()) + 1)
    ]
