"""A cell applied to each step of a sequence."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, SupportsIndex, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._check import (
    check_bool,
    check_choice,
    check_dense,
    check_int,
    check_same,
    common_size,
)
from .._conditionals import zeros_varying
from .._errors import describe_value, structure_error, type_error
from .._stage import (
    Canvas,
    Composite,
    Passes,
    Scope,
    Wire,
    as_stage,
    is_composite,
    own_state,
)
from .._tree import as_arrays, join_path
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .entries import Broadcast, look_up, read_broadcast

Returns: TypeAlias = Literal["sequence", "last", "both"]
"""The output of a scan: all outputs, the last one, or the last carry with all."""

_CELLS = eqx.nn.GRUCell | eqx.nn.LSTMCell

_OTHER = (
    "the carry that the cell{} returns differs from the carry that it got; first what "
    "it got, then what it returned"
)
_KEEP = (
    "Keep the structure, shapes and dtypes of the carry, for instance `init=0.0` "
    "instead of `0`."
)
_CURE = (
    "Each array needs a leading axis of steps, all of the same length. Values that "
    "every step reads may be entries of a dict, which `broadcast` names: "
    '`scan(..., broadcast="memory")`.'
)


_DENSE = (
    "A loop splits and stacks dense arrays: use `.todense()`, or carry the matrix, or "
    "name its entry in `broadcast`."
)


class Scan(Composite):
    """A cell under `lax.scan`; see `scan`."""

    cell: AnyStage
    init: PyTree
    broadcast: tuple[str, ...] = eqx.field(static=True, default=())
    returns: str = eqx.field(static=True, default="sequence")
    reverse: bool = eqx.field(static=True, default=False)
    unroll: int = eqx.field(static=True, default=1)

    @property
    def computes_init(self) -> bool:
        """Return whether a stage computes the first carry from the input."""
        return callable(self.init)

    def children(self) -> Mapping[str, AnyStage]:
        init = {"init": self.init} if self.computes_init else {}
        return {**init, "cell": self.cell}

    def with_child(self, segment: str, stage: StageLike) -> "Scan":
        if segment == "init":
            return super().with_child(segment, stage)
        return dataclasses.replace(self, cell=_read_cell(stage))

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        wires = [wire]
        if self.computes_init:
            wires.append(canvas.stage(path, "init", self.init, wire))
        return canvas.stage(path, "cell", self.cell, *wires)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        x = as_arrays(x)
        last = self.returns == "last"
        sequence, shared = x, None
        if self.broadcast:
            shared = look_up("scan", self.broadcast, x, scope, others=("x",))
            sequence = {name: x[name] for name in x if name not in shared}
        check_dense("scan", f"the input{scope.where}", sequence, _DENSE)
        leaves = jtu.tree_leaves(sequence)
        axes = [0 if eqx.is_array(leaf) else None for leaf in leaves]
        size = common_size("scan", f"the input{scope.where}", sequence, axes, _CURE)
        if size == 0 and last:
            raise structure_error(
                "scan",
                f"the sequence{scope.where} has no steps, and so no last output.",
                'Give one step at least, or use `returns="sequence"`.',
            )
        carry = self.init
        if self.computes_init:
            carry, state = scope.enter("init", self.init, x, state=state)
        elif carry is None:
            carry = _zeros(self.cell)
        carry, fixed = eqx.partition(as_arrays(carry), eqx.is_array)
        xs, constant = eqx.partition(sequence, eqx.is_array)
        # The state is carried, since it may be used only once, and the body of a loop
        # is traced more than once.
        cell_state, put_back = own_state(self.cell, state)
        index = None if scope.key is None else jnp.arange(size)
        passes, parts = Passes(scope), []

        def body(carried, slices):
            (part, cell_state, _), (step, i) = carried, slices
            before, now = eqx.combine(part, fixed), eqx.combine(step, constant)
            # Constants of the loop: neither carried nor split.
            now = now if shared is None else {**now, **shared}
            inner = passes.begin()
            after, y, cell_state = self._step(inner, before, now, cell_state, i)
            if not last:
                check_dense("scan", f"the output of the cell{scope.where}", y, _DENSE)
            ys, rest = _apart(y, after if last else None)
            parts.append(rest)
            after = as_arrays(after)
            # JAX's own error would include the state, and types instead of names.
            check_same("scan", _OTHER.format(scope.where), before, after, _KEEP)
            carried = eqx.filter(after, eqx.is_array), cell_state, ys if last else None
            return carried, (None if last else ys, passes.arrays())

        begin = (carry, cell_state, None)
        if last:
            # Only the last output is wanted, so it is carried, and nothing is stacked.
            first = jtu.tree_map(lambda leaf: leaf[0], (xs, index))

            def output(*inputs: Any) -> PyTree:
                return body(*inputs)[0][2]

            one, shapes = jax.make_jaxpr(output, return_shape=True)(begin, first)
            zeros = jtu.tree_unflatten(
                jtu.tree_structure(shapes), zeros_varying(one.out_avals)
            )
            begin = (carry, cell_state, zeros)
        (carry, cell_state, last_ys), (ys, values) = jax.lax.scan(
            body, begin, (xs, index), size, reverse=self.reverse, unroll=self.unroll
        )
        passes.end(values)
        carry = eqx.combine(carry, fixed)
        y = _whole(last_ys if last else ys, parts[-1], carry)
        return ((carry, y) if self.returns == "both" else y), put_back(cell_state)

    def _step(
        self, scope: Scope, carry: PyTree, x: PyTree, state: MaybeState, i: Any
    ) -> tuple[PyTree, PyTree, MaybeState]:
        """Return the carry, output and state after one step."""
        cell = self.cell
        if isinstance(cell, _CELLS):  # take the input first, return a carry
            carry, state = scope.enter("cell", cell, x, carry, state=state, index=i)
            return carry, carry[0] if isinstance(carry, tuple) else carry, state
        args = ({"carry": carry, "x": x},) if is_composite(cell) else (carry, x)
        both, state = scope.enter("cell", cell, *args, state=state, index=i)
        if not isinstance(both, tuple) or len(both) != 2:
            raise type_error(
                "scan",
                f"`{join_path(scope.path, 'cell')}` returned {describe_value(both)}, "
                "not a pair.",
                "Return `(carry, y)`: the carry for the next step, and the output of "
                "this step.",
            )
        return *both, state


def _apart(y: PyTree, carry: PyTree) -> tuple[PyTree, tuple[PyTree, PyTree]]:
    """Return the arrays of an output that are not leaves of the carry, and the rest.

    The last output is often part of the last carry, and is then not carried twice.
    """
    # By identity: traced values cannot be compared.
    leaves = enumerate(jtu.tree_leaves(carry))
    positions = {id(v): i for i, v in leaves if eqx.is_array(v)}
    at = jtu.tree_map(lambda v: positions.get(id(v), -1), y)
    arrays, constants = eqx.partition(as_arrays(y), eqx.is_array)
    rest = jtu.tree_map(lambda position, v: v if position < 0 else None, at, arrays)
    return rest, (at, constants)


def _whole(arrays: PyTree, rest: tuple[PyTree, PyTree], carry: PyTree) -> PyTree:
    """Reassemble an output that `_apart` took apart."""
    (at, constants), leaves = rest, jtu.tree_leaves(carry)
    shared = jtu.tree_map(lambda i: None if i < 0 else leaves[i], at)
    return eqx.combine(arrays, shared, constants)


def _zeros(cell: Any) -> PyTree:
    """Return the zero carry of an Equinox cell."""
    zeros = jnp.zeros((cell.hidden_size,), cell.weight_hh.dtype)
    return (zeros, zeros) if isinstance(cell, eqx.nn.LSTMCell) else zeros


def scan(
    cell: StageLike,
    init: PyTree | StageLike = None,
    *,
    broadcast: Broadcast = (),
    returns: Returns = "sequence",
    reverse: bool = False,
    unroll: SupportsIndex = 1,
) -> Scan:
    """Apply a cell to each step of a sequence in order.

    The input's arrays are split along their leading axis, time. One `jax.lax.scan`
    passes the carry from step to step: `cell(carry, x) -> (carry, y)`. Equinox's
    `GRUCell` and `LSTMCell` work directly: their state is the carry, and the hidden
    vector is the output. The cell draws from `fold_in(key, i)` for element `i` of the
    sequence; a stateful cell passes its state from step to step. For both directions,
    use a `parallel` of two scans, as below.

    **Arguments:**

    - `cell`: a function or layer of two inputs, `cell(carry, x, *, key=None)`. A
        stateful one is called as `cell(carry, x, state, *, key=None)` and returns
        `((carry, y), state)`. A pipeline gets them as a mapping, `{"carry": ...,
        "x": ...}`.
    - `init`: the first carry. Either a pytree of arrays, which are parameters of the
        stage, or a stage that computes the carry from the whole input, such as
        `lambda xs: jnp.zeros(3)`; its path is `init`. By default Equinox's cells begin
        with zeros.
    - `broadcast`: the name, or names, of the entries that every step reads whole, if
        the input is a mapping: the memory of a decoder, a mask. The other entries are
        sequences. `x` is then a mapping, too. (Keyword only.)
    - `returns`: `"sequence"`: the outputs of all steps, along a new leading axis;
        `"last"`: the output of the last step only; `"both"`: the last carry and all
        outputs, as `(carry, ys)`. (Keyword only.)
    - `reverse`: whether to begin with the last element. Outputs keep the positions of
        their inputs, so the last step is at the first element. (Keyword only.)
    - `unroll`: the number of steps per iteration of the loop; see `jax.lax.scan`.
        (Keyword only.)

    **Returns:** a stage that takes a sequence.

    **Shapes:** the cell gets an input leaf `(steps, *a)` as `(*a,)`; an output leaf
    `(*b,)` of the cell becomes `(steps, *b)`, or stays `(*b,)` with `"last"`.

    **Raises:**

    - `TypeError` if the cell does not take two inputs, `init` is missing, `reverse` is
      not a bool, or `broadcast` is given with a cell of Equinox; when called, if the
      cell does not return a pair, or a sequence is a sparse matrix.
    - `ValueError` if `returns` is unknown, or `unroll` is not positive; when called, if
      the sequence is empty and `returns` is `"last"`.
    - `StructureError` (a `ValueError`), when called, if arrays have leading axes of
      different lengths, a broadcast entry is missing, or the new carry differs from the
      old one in structure, shape or dtype; the error names the leaves.

    **Laws:** it equals the loop `for i, x in enumerate(xs): carry, y = cell(carry, x,
    key=fold_in(key, i))`, forward and in gradients; `"last"` is the last entry of the
    sequence; an entry that is broadcast is the sequence of its copies.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> add = lambda total, x: (total + x, total + x)
        >>> ep.scan(add, jnp.zeros(()))(jnp.arange(4.0)).tolist()
        [0.0, 1.0, 3.0, 6.0]
        >>> add = lambda total, x: (total + x["x"] * x["by"],) * 2
        >>> times = ep.scan(add, 0.0, broadcast="by")
        >>> times({"x": jnp.arange(4.0), "by": 2.0}).tolist()
        [0.0, 2.0, 6.0, 12.0]
        >>> cell = eqx.nn.GRUCell(2, 8, key=jr.key(0))
        >>> both = ep.parallel(ep.scan(cell), ep.scan(cell, reverse=True))
        >>> last, xs = ep.scan(cell, returns="last"), jnp.ones((5, 2))
        >>> both(xs).shape, last(xs).shape
        ((5, 16), (8,))
    """
    read = _read_cell(cell)
    broadcast = read_broadcast("scan", broadcast)
    if broadcast and isinstance(cell, _CELLS):
        raise type_error(
            "scan",
            f"`broadcast` with a `{type(cell).__name__}`, which takes one array.",
            "Give a function of the carry and a mapping with the entries of one step.",
        )
    check_choice("scan", "returns", returns, get_args(Returns))
    check_bool("scan", "reverse", reverse)
    check_int("scan", "unroll", unroll, 1)
    if init is None and not isinstance(cell, _CELLS):
        raise type_error(
            "scan",
            "`init` is None.",
            "Give the carry of the first step: arrays, or a function of the whole "
            "input, `lambda xs: jax.numpy.zeros(3)`.",
        )
    first = as_stage("scan", "init", init) if callable(init) else as_arrays(init)
    return Scan(read, first, broadcast, returns, bool(reverse), unroll.__index__())


def _read_cell(cell: StageLike) -> AnyStage:
    """Return the cell as a module; raise unless it takes a carry and an input."""
    named = ("carry", "x") if is_composite(cell) else ()
    return as_stage(
        "scan",
        "cell",
        cell,
        "Give a function of the carry and one step of the input that returns "
        "`(carry, y)`. To apply a stage to each step alone, use "
        "`eqx_pipe.batched(stage)`.",
        num_inputs=0 if named else 2,
        named=named,
        inputs="a carry and a step of the input",
    )
