"""A program split at its long loops, so that it can stop between two steps of them.

The pieces together are the program, and nothing is computed twice: for each loop, what
must be computed before it and some of its steps, and at the end all other equations.
Between the pieces there is a state: for each loop the values made before it that later
pieces read, then its carry and stacked outputs. A program goes on from its state, also
in another process.
"""

import dataclasses
import itertools as it
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.interpreters.partial_eval import dce_jaxpr

from .._tree import as_data, as_keys, key_kind
from .._types import AnyJaxpr, ClosedJaxpr
from .evaluate import evaluate, stepped
from .jaxpr import (
    Equation,
    as_function,
    is_literal,
    open_jaxpr,
    read,
    rebind,
    sub_jaxprs,
    trace,
)
from .table import kind, scan_counts, while_counts

_UNKNOWN_STEPS = 1600
"""The assumed number of steps of a `while_loop`."""

UNIT = 64
"""The most steps of a loop of known length that are run at once."""

_SHARE = 0.05
"""The smallest part of the work for which a loop can be left."""

# The operations of a routine for a matrix of m rows and n columns, in m n min(m, n).
_ROUTINES = {"lu": 1, "cholesky": 1, "geqrf": 2, "qr": 2, "triangular_solve": 1}
_ROUTINES |= {"eigh": 10, "eig": 20, "svd": 20, "schur": 20, "hessenberg": 5}


def work(jaxpr: AnyJaxpr) -> float:
    """Return the estimated number of operations of a jaxpr."""
    return float(sum(map(_work_of, open_jaxpr(jaxpr)[0].eqns)))


def _work_of(eqn: Equation) -> float:
    name, inner = eqn.primitive.name, list(sub_jaxprs(eqn))
    if name == "scan":
        return eqn.params["length"] * work(eqn.params["jaxpr"])
    if kind(eqn) == "while":
        return _UNKNOWN_STEPS * sum(map(work, inner))
    if inner:
        return max(map(work, inner))
    avals: list[Any] = [v.aval for v in eqn.invars]
    outputs = sum(math.prod(getattr(v.aval, "shape", ())) for v in eqn.outvars)
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = avals[0].shape
        outputs *= 2 * math.prod(shape[axis] for axis in contracted)
    elif name == "conv_general_dilated":
        kernel, numbers = avals[1].shape, eqn.params["dimension_numbers"]
        outputs *= 2 * math.prod(kernel) // max(1, kernel[numbers.rhs_spec[0]])
    elif name in _ROUTINES:
        shape = avals[0].shape
        outputs += _ROUTINES[name] * math.prod(shape) * min(shape[-2:], default=1)
    return float(1 + outputs)


@dataclasses.dataclass(frozen=True)
class _Loop:
    """A loop, the equations `before` it, and what they make that is read later."""

    eqn: Equation
    before: list[Equation]
    held: list[Any]
    unit: int = 1

    @property
    def slots(self) -> list[Any]:
        """The variables of the state that belong to the loop."""
        return [*self.held, *self.eqn.outvars]

    @property
    def length(self) -> int | None:
        """The number of steps, or `None` if it depends on values."""
        return self.eqn.params.get("length")


class Split:
    """The pieces of a program, as functions of its inputs: its constants come first.

    `state` has a leaf for each of the `slots` of all loops; PRNG keys are raw data.
    """

    def __init__(self, jaxpr: AnyJaxpr, at: Sequence[int], most: float, uneven: bool):
        self.at = tuple(at)
        inner, self._consts = open_jaxpr(jaxpr)
        self._jaxpr, left = inner, list(inner.eqns)
        parts: list[tuple[Equation, list[Equation]]] = []
        for loop in (inner.eqns[k] for k in at):
            end = next(k for k, eqn in enumerate(left) if eqn is loop)
            wanted, before = _variables(loop.invars), []
            for eqn in reversed(left[:end]):
                if wanted.intersection(eqn.outvars):
                    before.append(eqn)
                    wanted |= _variables(eqn.invars)
            mine = {id(loop), *map(id, before)}
            left = [eqn for eqn in left if id(eqn) not in mine]
            parts.append((loop, before[::-1]))
        self._after = left
        self.loops: list[_Loop] = []
        for k, (loop, before) in enumerate(parts):
            initial = _carried(loop)
            read = [*loop.invars[: initial.start], *inner.outvars]
            read += [] if initial.stop is None else loop.invars[initial.stop :]
            later = ([*eqns, each] for each, eqns in parts[k + 1 :])
            read += [v for eqn in it.chain(*later, left) for v in eqn.invars]
            made = _variables(out for eqn in before for out in eqn.outvars)
            held = [v for v in read if not is_literal(v) and v in made]
            held = list(dict.fromkeys(held))
            unit = _unit_of(loop, most, uneven)
            self.loops.append(_Loop(loop, before, held, unit))
        self.slots = [v for loop in self.loops for v in loop.slots]
        ends = [*it.accumulate(len(loop.slots) for loop in self.loops)]
        self._begins = [0, *ends[:-1]]

    @property
    def state(self) -> list[jax.ShapeDtypeStruct]:
        """The shapes and dtypes of the state of a point."""
        return [_data_struct(v.aval) for v in self.slots]

    @property
    def steps(self) -> int | None:
        """The number of steps of all loops, if it is known."""
        lengths = [loop.length for loop in self.loops if loop.length is not None]
        return sum(lengths) if len(lengths) == len(self.loops) else None

    def place(self, k: int) -> slice:
        """Return the leaves of the state that belong to a loop."""
        return slice(self._begins[k], self._begins[k] + len(self.loops[k].slots))

    def moving(self, k: int) -> slice:
        """Return the leaves of the state that a loop changes."""
        begin = self._begins[k] + len(self.loops[k].held)
        return slice(begin, begin + len(self.loops[k].eqn.outvars))

    def begin(self, k: int, inputs: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        """Return the leaves of a loop before its first step."""
        loop, values = self.loops[k], self._values(inputs, state)
        _run(loop.before, values)
        held = [as_data(jnp.asarray(values[v])) for v in loop.held]
        carried = read(loop.eqn.invars[_carried(loop.eqn)], values)
        made: list[Any] = loop.eqn.outvars
        # An initial carry may be a Python number, or have a weak type.
        carry = [
            x if key_kind(v.aval) else jnp.asarray(x, v.aval.dtype)
            for x, v in zip(carried, made, strict=False)
        ]
        stacked = [_data_struct(v.aval) for v in made[len(carry) :]]
        zeros = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in stacked]
        return [*held, *map(as_data, carry), *zeros]

    def advance(
        self, k: int, inputs: Sequence[Any], state: Sequence[Any], at: Any, left: Any
    ) -> tuple[list[Any], Any]:
        """Run at most `left` more steps of a loop after `at` steps.

        Returns the leaves that it changes, and the number of steps; the loop has ended
        if they are fewer than `left`.
        """
        eqn, values = self.loops[k].eqn, self._values(inputs, state)
        carry = [values[v] for v in eqn.outvars]
        # The initial carry is not in the state.
        values |= dict.fromkeys(_variables(eqn.invars) - values.keys())
        inputs = read(eqn.invars, values)
        if eqn.primitive.name == "scan":
            carry, steps = _scan(eqn, inputs, carry, at, left, self.loops[k].unit)
        else:
            carry, steps = _while_loop(eqn, inputs, carry, at, left)
        return list(map(as_data, carry)), steps

    def finish(self, inputs: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        """Return the outputs of the program after its last loop."""
        values = self._values(inputs, state)
        _run(self._after, values)
        return read(self._jaxpr.outvars, values)

    def _values(self, inputs: Sequence[Any], state: Sequence[Any]) -> dict[Any, Any]:
        values = dict(zip(self._jaxpr.constvars, self._consts, strict=True))
        values |= zip(self._jaxpr.invars, inputs, strict=True)
        pairs = zip(self.slots, state, strict=True)
        return values | {v: as_keys(x, v.aval) for v, x in pairs}


def _scan(
    eqn: Equation, inputs: list[Any], carry: list[Any], at: Any, left: Any, unit: int
) -> tuple[list[Any], Any]:
    """Run some units of a scan, whose carry and stacked outputs are `carry`.

    A device runs a loop of known length by itself; a GPU asks the host after each step
    of another one. The first unit may have fewer steps than the others.
    """
    num_consts, num_carry = scan_counts(eqn)
    consts, xs = inputs[:num_consts], inputs[num_consts + num_carry :]
    body, length = as_function(eqn.params["jaxpr"]), eqn.params["length"]
    units = -(-length // unit)
    fewer = units * unit - length
    stop = at + jnp.minimum(left, jnp.uint32(units) - at)

    def step(n: Any, carry: Any, ys: Any) -> Any:
        k = jnp.uint32(length - 1) - n if eqn.params["reverse"] else n
        k = k.astype(jnp.int32)
        x = [jax.lax.dynamic_index_in_dim(leaf, k, 0, keepdims=False) for leaf in xs]
        out = body(*consts, *carry, *x)
        pairs = zip(ys, out[num_carry:], strict=True)
        ys = [jax.lax.dynamic_update_index_in_dim(y, o, k, 0) for y, o in pairs]
        return out[:num_carry], ys

    def steps(state: Any) -> Any:
        n, carry, ys = state
        if unit == 1:
            return n + jnp.uint32(1), *step(n, carry, ys)
        first = jnp.maximum(n * jnp.uint32(unit), jnp.uint32(fewer)) - fewer

        def run(steps: int) -> Any:
            def one(j: Any, state: Any) -> Any:
                return step(first + j.astype(jnp.uint32), *state)

            return jax.lax.fori_loop(0, steps, one, (carry, ys))

        if not fewer:
            return n + jnp.uint32(1), *run(unit)
        now = jax.lax.cond(n == 0, lambda: run(unit - fewer), lambda: run(unit))
        return n + jnp.uint32(1), *now

    first = at, carry[:num_carry], carry[num_carry:]
    n, last, ys = jax.lax.while_loop(lambda state: state[0] < stop, steps, first)
    return [*last, *ys], n - at


def _while_loop(
    eqn: Equation, inputs: list[Any], carry: list[Any], at: Any, left: Any
) -> tuple[list[Any], Any]:
    """Run some steps of a `while_loop`, which may have a condition for each lane."""
    of_cond, of_body = while_counts(eqn)
    cond = as_function(eqn.params["cond_jaxpr"])
    body = as_function(eqn.params["body_jaxpr"])
    consts = inputs[of_cond : of_cond + of_body]

    def going(carry: Sequence[Any]) -> Any:
        return cond(*inputs[:of_cond], *carry)[0]

    def goes_on(state: Any) -> Any:
        return _any_lane(jnp.any(going(state[1]))) & (state[0] < left)

    def step(state: Any) -> Any:
        n, carry = state
        new = stepped(eqn, going, body(*consts, *carry), carry)
        new = _in_lanes(jnp.any(going(carry)), new, list(carry))
        return n + jnp.uint32(1), new

    n, carry = jax.lax.while_loop(goes_on, step, (jnp.uint32(0), carry))
    return carry, n


# With these two, `vmap` keeps one number of steps for all lanes. It would select a
# number for each lane otherwise, and a step of a small solver take a quarter longer.


@custom_vmap
def _any_lane(going: Any) -> Any:
    """Return whether any lane goes on."""
    return going


@_any_lane.def_vmap
def _(_: int, batched: Any, going: Any) -> tuple[Any, bool]:
    return jnp.any(going), False


@custom_vmap
def _in_lanes(going: Any, new: list[Any], old: list[Any]) -> list[Any]:
    """Return the carry after a step, for lanes that have ended the one before it."""
    return new


@_in_lanes.def_vmap
def _(_: int, batched: Any, going: Any, new: Any, old: Any) -> tuple[Any, list[bool]]:
    by_lane, after, before = batched
    if not by_lane:
        return new, after

    def select(x: Any, y: Any, x_lanes: bool, y_lanes: bool) -> Any:
        axes = 0, 0 if x_lanes else None, 0 if y_lanes else None
        return jax.vmap(jnp.where, axes)(going, x, y)

    made = list(map(select, new, old, after, before))
    return made, [True] * len(made)


def split_of(
    jaxpr: AnyJaxpr, constants: Sequence[Any], least: float, uneven: bool = False
) -> Split | None:
    """Return a program split at its long loops, or `None` if there are none.

    A loop is long if it has `least` operations, and a twentieth of those of the longest
    one. Units of loops are `uneven` if the first may have fewer steps: then the step is
    compiled twice if the length has no suitable divisor.
    """
    if not any(kind(eqn) in ("scan", "while", "call") for eqn in _eqns(jaxpr)):
        return None
    if work(jaxpr) < least:
        return None
    inputs = [x.aval for x in open_jaxpr(jaxpr)[0].invars]
    types = [_struct(x) for x in (*constants, *inputs)]
    n = len(constants)
    whole = trace(lambda *x: evaluate(jaxpr, x[:n], x[n:], inline=True), *types)
    flat = _without_dead(whole)
    works = {k: _work_of(e) for k, e in enumerate(_eqns(flat)) if _can_be_left(e)}
    enough = max(least, _SHARE * max(works.values(), default=0))
    long = [k for k, each in works.items() if each >= enough]
    return Split(flat, long, least, uneven) if long else None


def _unit_of(loop: Equation, most: float, uneven: bool) -> int:
    """Return the steps of a loop that are run at once, of at most `most` operations."""
    length = loop.params.get("length", 1)
    if length == 1:
        return 1
    of_a_step = max(1.0, work(loop.params["jaxpr"]))
    room = int(min(UNIT, length, max(1.0, most / of_a_step)))
    even = max(k for k in range(1, room + 1) if length % k == 0)
    return room if uneven and even < room // 4 else even


def _without_dead(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Return a jaxpr without carries that no output needs, which XLA would remove.

    They would become part of the state. JAX 0.10 keeps those of a `while_loop`.
    """
    inner, consts = open_jaxpr(jaxpr)
    live: Any
    live, _ = dce_jaxpr(inner, [True] * len(inner.outvars), instantiate=True)
    return trace(as_function(live, consts), *(_struct(v.aval) for v in inner.invars))


def _eqns(jaxpr: AnyJaxpr) -> list[Equation]:
    return open_jaxpr(jaxpr)[0].eqns


def _can_be_left(eqn: Equation) -> bool:
    if eqn.primitive.name == "scan":
        return 1 < eqn.params["length"] < 2**31
    return eqn.primitive.name == "while"


def _carried(loop: Equation) -> slice:
    """Return the inputs of a loop that are its initial carry."""
    if loop.primitive.name == "scan":
        num_consts, num_carry = scan_counts(loop)
        return slice(num_consts, num_consts + num_carry)
    return slice(sum(while_counts(loop)), None)


def _variables(atoms: Any) -> set[Any]:
    return {atom for atom in atoms if not is_literal(atom)}


def _run(eqns: Sequence[Equation], values: dict[Any, Any]) -> None:
    for eqn in eqns:
        outputs = rebind(eqn, read(eqn.invars, values))
        values |= zip(eqn.outvars, outputs, strict=True)


def _struct(x: Any) -> jax.ShapeDtypeStruct:
    weak = bool(getattr(x, "weak_type", False))
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=weak)


def _data_struct(aval: Any) -> jax.ShapeDtypeStruct:
    return as_data(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
