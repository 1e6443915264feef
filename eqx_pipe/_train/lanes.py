"""The program of trainings with one structure, and the turns in which it runs."""

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
from .._tree import as_data, as_keys, nbytes, struct_of
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
Columns = Mapping[str, Any]
"""Values of the axes by path, with an entry for each training."""


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
        records: int,
    ):
        self.training, self.space, self.key, self.rows = training, space, key, rows
        self.devices, self._given = devices, batch_size
        self._mesh = flat_mesh(devices)
        self._split = NamedSharding(self._mesh, P(self._mesh.axis_names))
        # The values of Static axes are those of the first point.
        geometry = space.geometry
        self._structure = geometry.structure
        self._nodes = self._structure.flatten_up_to(space.point(int(rows[0])))
        self._axes: list[int] = []
        self.columns: dict[str, np.ndarray] = {}
        dims = zip(geometry.axis_dims, geometry.leaf_indices, strict=True)
        for (name, axis), (dim, leaf) in zip(geometry.axes.items(), dims, strict=True):
            if not axis.is_static:
                self._axes.append(leaf)
                few, back = np.unique(
                    geometry.digits(rows)[:, dim], return_inverse=True
                )
                for column, value in geometry.axis_values(name, few):
                    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
                    self.columns[column] = value[back].astype(dtype)
        self._programs: dict[str, tuple[ClosedJaxpr, Any, list[Any]]] = {}
        self._trace(records)
        self.carries: list[Any] = []

    def point(self, columns: Columns) -> PyTree:
        """Return a point with the given values of axes."""
        nodes, following = list(self._nodes), iter(columns.values())
        for index in self._axes:
            like, structure = jtu.tree_flatten(self._nodes[index])
            leaves = [as_keys(next(following), leaf) for leaf in like]
            nodes[index] = structure.unflatten(leaves)
        return self._structure.unflatten(nodes)

    def carry(self, columns: Columns, at: int) -> PyTree:
        """Return the carry of a training, with the static parts of its point."""
        own = [jnp.asarray(x[at]) for x in columns.values()]
        leaves = [jnp.asarray(np.asarray(x)[at]) for x in self.carries]
        _, _, arrays, rest = self._lane(int(self.rows[at]), own, leaves)
        return eqx.combine(arrays, rest)

    # ---- the programs --------------------------------------------------------------

    def _lane(self, row: Any, columns: Sequence[Any], leaves: Any = None) -> Any:
        """Return the point of a training, its key, and the two parts of its carry.

        The arrays of the carry are those of `init`, or `leaves`.
        """
        point = self.point(dict(zip(self.columns, columns, strict=True)))
        own = self.space.point_key(row, key=self.key)
        # XLA drops the first carry, whose static parts may hold traced numbers.
        arrays, rest = begun(self.training, point, own)
        if leaves is not None:
            like, structure = jtu.tree_flatten(arrays)
            pairs = zip(leaves, like, strict=True)
            arrays = structure.unflatten([as_keys(x, old) for x, old in pairs])
        return point, own, arrays, rest

    def _trace(self, records: int) -> None:
        """Trace the programs; a call records the metrics of at most `records` steps."""
        training, width = self.training, len(self.columns)
        number = jax.ShapeDtypeStruct((), np.int32)
        own = [number, *(struct_of(x, drop=1) for x in self.columns.values())]

        def begin(row: Any, *columns: Any) -> list[Any]:
            return _raw(self._lane(row, columns)[2])

        def step(row: Any, *rest: Any) -> Any:
            point, own, arrays, static = self._lane(row, rest[:width], rest[width:])
            return stepped(training, point, own, (arrays, static), jnp.int32(1))[1]

        def evaluate(row: Any, *rest: Any) -> Any:
            point, own, arrays, static = self._lane(row, rest[:width], rest[width:])
            carry = eqx.combine(arrays, static)
            return evaluated(training, point, own, carry, jnp.int32(1))

        self.structs = jax.eval_shape(begin, *own)
        given = [*own, *self.structs]
        self.metrics: dict[str, Any] = jax.eval_shape(step, *given)
        self.evaluations: dict[str, Any] = jax.eval_shape(evaluate, *given)
        names = [*self.metrics, *self.evaluations]
        check_distinct("train", "metrics of `step` and `evaluate`", names)
        each = sum(map(nbytes, self.metrics.values())) * len(self.rows)
        self.records = max(1, min(records, _BUFFER_BYTES // max(1, each)))

        def advance(row: Any, *rest: Any) -> list[Any]:
            start, each, count, ending = rest[-4:]
            leaves = rest[width:-4]
            point, own, arrays, static = self._lane(row, rest[:width], leaves)

            def one(i: Any, state: Any) -> Any:
                arrays, kept = state
                arrays, now = stepped(training, point, own, (arrays, static), i + 1)
                # The last step of a record overwrites the others: a loop for each
                # record would copy the carry.
                at = (i - start) // each
                return arrays, jtu.tree_map(lambda k, x: k.at[at].set(x), kept, now)

            kept = _zeros(self.metrics, self.records)
            ends = start, start + each * count
            arrays, kept = jax.lax.fori_loop(*ends, one, (arrays, kept))

            def evaluate() -> Any:
                carry = eqx.combine(arrays, static)
                return evaluated(training, point, own, carry, ends[1])

            found: Any = _zeros(self.evaluations)
            if found:
                found = jax.lax.cond(ending, evaluate, lambda: found)
            # A dict is flattened by its sorted keys.
            return [*_raw(arrays), *kept.values(), *found.values()]

        self._add("init", begin, own, [])
        flag = jax.ShapeDtypeStruct((), np.bool_)
        self._add("step", advance, given, [number, number, number, flag])

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
        if len(self.devices) > 1:
            program = over_devices(on_device, self._mesh, split)
        whole = NamedSharding(self._mesh, P())
        consts = [jax.device_put(x, whole) for x in held]
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
        whole = np.arange(len(self.rows))
        self.carries, _, failed = self._run("init", whole, self.columns, ())
        return failed

    def advance(
        self, active: Rows, columns: Columns, plan: Sequence[Any]
    ) -> tuple[list[Any], dict[str, np.ndarray], dict[int, str]]:
        """Train the `active` trainings; return new carries, records and errors.

        `plan` is the step to begin after, the steps of a record, the number of records,
        and whether to evaluate. Carries of failed trainings stay what they were.
        """
        carries, outputs, failed = self._run("step", active, columns, plan)
        names = *self.metrics, *self.evaluations
        return carries, dict(zip(names, outputs, strict=True)), failed

    def _run(
        self, name: str, active: Rows, columns: Columns, plan: Sequence[Any]
    ) -> tuple[list[Any], list[np.ndarray], dict[int, str]]:
        count, moving = len(self.rows), len(self.structs)
        lanes = self._size(len(active)) * len(self.devices)
        failed: dict[int, str] = {}
        found: list[tuple[Rows, list[Any]]] = []

        def attempt(part: Rows) -> None:
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
                with noting(lanes // len(self.devices)):
                    out = jax.block_until_ready(program(*consts, *own, *plan))
                found.append((part, list(out)))
            except TooLarge as error:
                raise does_not_fit("train", error, self._given is not None) from error
            except Exception as error:
                if len(part) == 1:
                    failed[int(part[0])] = error_text(error)
                    return
                half = len(part) // 2
                attempt(part[:half])
                attempt(part[half:])

        for k in range(0, len(active), lanes):
            attempt(active[k : k + lanes])
        stay = len(found) == 1 and len(active) == count and not failed
        leaves: list[Any] = []
        for i, struct in enumerate(self._programs[name][0].out_avals):
            if stay and i < moving:
                leaves.append(found[0][1][i])  # on the devices
                continue
            leaf = np.zeros((count, *struct.shape), struct.dtype)
            if i < len(self.carries):
                leaf[:] = np.asarray(self.carries[i])[:count]
            for at, out in found:
                leaf[at] = np.asarray(out[i])[: len(at)]
            leaves.append(leaf)
        return leaves[:moving], leaves[moving:], failed

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
        devices = len(self.devices)
        each = -(-len(self.rows) // devices)
        size = -(-each // -(-each // _BATCH))
        while size > 1 and -(-size // 2) * devices >= trainings:
            size = -(-size // 2)
        return size

    def inherit(self, source: Rows) -> None:
        """Let each training continue from the carry of another."""
        if (source != np.arange(len(source))).any():
            self.carries = [np.asarray(x)[source] for x in self.carries]


def _raw(arrays: PyTree) -> list[Any]:
    return [jnp.asarray(as_data(x)) for x in jtu.tree_leaves(arrays)]


def _zeros(structs: PyTree, *lead: int) -> PyTree:
    return jtu.tree_map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), structs)
