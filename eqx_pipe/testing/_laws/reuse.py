"""Whether a program draws from one key twice.

The program is walked with the values of its keys, and two keys are one if their bits
are. So it does not matter by which operations a key gets where it is used, and an
operation that JAX gets tomorrow is no gap: it is run. Only operations that hold
programs must be known; for one that is not and uses keys inside, `Unknown` is raised.

Values that no key depends on are not computed. Both sides of a branch are walked,
and what both use counts once, also where `vmap` has made a select of the branch.
"""

import functools as ft
import itertools as it
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ..._jaxprs.jaxpr import Equation, interpret, open_jaxpr, rebind, sub_jaxprs, within
from ..._jaxprs.table import kind, scan_counts, while_counts
from .branches import Guards, exclusive, guards_in
from .law import Broken

PASSES = 16
"""How many passes of a loop are walked: a key that all share is seen in the second."""

# These take a key and give none, and yet do not use it up.
_LOOK = {"random_unwrap", "eq", "ne", "debug_callback", "debug_print"}

_FIRST_CLONE = 0xC10E0000

# Of the lines that lead to an operation, those of these are of no help.
_PACKAGE = sys.modules["eqx_pipe"]
_NOT_THE_USERS = tuple(
    os.path.join(os.path.dirname(m.__file__ or ""), "") for m in (jax, eqx, _PACKAGE)
)


class Unknown(Exception):
    """An operation that cannot be looked into uses keys."""


def draws(eqn: Any) -> bool:
    """Whether an operation draws random numbers: keys go in, and none come out."""
    if eqn.primitive.name == "rng_bit_generator":
        return True
    if eqn.primitive.name in _LOOK or any(sub_jaxprs(eqn)):
        return False
    return any(map(_is_key, eqn.invars)) and not any(map(_is_key, eqn.outvars))


def check_reuse(program: Any, args: Sequence[Any], is_given: Sequence[bool]) -> None:
    """Raises `Broken` if a key among the `args` that `is_given`, or one made of these,
    is used twice in a jaxpr, and `Unknown` if that cannot be told.

    To split a key is to use it, to fold something into it is not, as in JAX's own
    check. Keys that do not come from those given are constants, and may be used again.
    """
    nodes = [_Node(x, given) for x, given in zip(args, is_given, strict=True)]
    _Walk().run(program, nodes)


class _Node:
    """A value, computed when it is asked for; whether it comes from the given keys."""

    def __init__(self, value: Any, varies: bool = False):
        self.value, self.varies = value, varies
        self.make: Callable[..., Any] | None = None
        self.inputs: Sequence[_Node] = ()

    @classmethod
    def of(cls, make: Callable[..., Any], inputs: Sequence["_Node"]) -> "_Node":
        """The value that `make` gives of those of the inputs."""
        node = cls(None, any(v.varies for v in inputs))
        node.make, node.inputs = make, inputs
        return node

    def get(self) -> Any:
        """The value. Not by recursion, since programs may be long."""
        stack = [self]
        while stack:
            node = stack[-1]
            waiting = [v for v in node.inputs if v.make is not None]
            if node.make is None or not waiting:
                stack.pop()
            if node.make is not None and not waiting:
                node.value = node.make(*(v.value for v in node.inputs))
                node.make, node.inputs = None, ()
            stack += waiting
        return self.value


class _Walk:
    """The keys used so far, by their bits: where, and under which conditions."""

    def __init__(self) -> None:
        self.used: dict[bytes, tuple[tuple[Guards, str], ...]] = {}
        self.guards: dict[Any, tuple[Guards | None, ...]] = {}
        self.clones = it.count()

    def run(
        self,
        closed: Any,
        inputs: Sequence[_Node],
        guards: Guards = frozenset(),
        lanes: tuple[_Node, ...] = (),
        place: str = "",
    ) -> list[_Node]:
        """The outputs of a jaxpr.

        `guards` are the conditions under which it matters, `lanes` say which elements
        the loops around it still change, and `place` is where it is called, if JAX may
        have traced it for another caller.
        """
        jaxpr = open_jaxpr(closed)[0]
        if jaxpr not in self.guards:
            self.guards[jaxpr] = guards_in(jaxpr)
        own = iter(self.guards[jaxpr])

        def rule(eqn: Equation, given: list[_Node]) -> list[_Node]:
            further = next(own)
            if further is None:  # What comes out is not used.
                return _bound(eqn, given)
            return self.equation(eqn, given, guards | further, lanes, place)

        return interpret(closed, inputs, rule, _Node)

    def equation(
        self,
        eqn: Any,
        inputs: list[_Node],
        guards: Guards,
        lanes: tuple[_Node, ...],
        place: str,
    ) -> list[_Node]:
        """The outputs of one operation."""
        name, params = eqn.primitive.name, eqn.params
        if draws(eqn) or name == "random_split":
            for v, node in zip(eqn.invars, inputs, strict=True):
                if node.varies and (_is_key(v) or name == "rng_bit_generator"):
                    self.use(node, place or _place(eqn), guards, lanes)
        if name == "random_clone":
            # Meant to be used again: for the walk another key, that no split gives.
            number = _FIRST_CLONE + next(self.clones)
            return [_Node.of(lambda key: jr.fold_in(key, number), inputs)]
        # A checkpoint that is differentiated runs what was run before again.
        if not _uses_inside(eqn) or params.get("differentiated"):
            return _bound(eqn, inputs)
        walk = ft.partial(self.run, guards=guards, lanes=lanes, place=place)
        if kind(eqn) == "branches":
            self.branches(params["branches"], inputs[1:], walk)
            return _bound(eqn, inputs)
        if name == "scan":
            return _scan(eqn, inputs, walk)
        if name == "while":
            n, m = while_counts(eqn)
            cond = ft.partial(walk, params["cond_jaxpr"]), inputs[:n]
            body = ft.partial(walk, params["body_jaxpr"]), inputs[n : n + m]
            return _while(cond, body, inputs[n + m :], lanes)
        if name == "eqx_pipe_refill" and params["size"] is None:
            n = params["num_consts"]
            cond = ft.partial(walk, params["cond"]), inputs[:n]
            body = ft.partial(walk, params["body"]), inputs[:n]
            return _while(cond, body, inputs[n:], lanes)
        bodies = list(sub_jaxprs(eqn))
        if len(bodies) == 1 and _is_call_of(bodies[0], eqn):
            return walk(bodies[0], inputs, place=place or _place(eqn))
        raise Unknown(f"a key is used inside `{name}`, which is not understood")

    def branches(self, branches: Any, inputs: list[_Node], walk: Any) -> None:
        """Walks all branches, of which one will run."""
        before = after = self.used
        for branch in branches:
            self.used = dict(before)
            walk(branch, inputs)
            after = after | self.used
        self.used = after

    def use(
        self, node: _Node, place: str, guards: Guards, lanes: tuple[_Node, ...]
    ) -> None:
        """Takes note of a use of keys, and raises `Broken` at the second."""
        fresh: set[bytes] = set()
        for key in _rows(node.get(), [v.get() for v in lanes]):
            if key in fresh:
                raise Broken(
                    "reuse",
                    f"one key is used in several lanes at {place}; split it, a key for "
                    "each lane, or draw once and hand in what was drawn",
                )
            for earlier, where in self.used.get(key, ()):
                if not exclusive(earlier, guards):
                    again = "and again" if where == place else f"and at {place}"
                    raise Broken(
                        "reuse",
                        f"one key is used at {where} {again}; split it first, or, if "
                        "this is meant, use its `jax.random.clone`",
                    )
            fresh.add(key)
        for key in fresh:
            self.used[key] = (*self.used.get(key, ()), (guards, place))


def _rows(keys: Any, lanes: list[Any]) -> list[bytes]:
    """The bits of each key, but for those in lanes whose loop has ended."""
    if _has_key_dtype(keys):
        shape, data = keys.shape, np.asarray(jr.key_data(keys))
    else:  # the state of `rng_bit_generator`
        shape, data = keys.shape[:-1], np.asarray(keys)
    running = np.ones(shape, bool)
    for lane in lanes:
        if shape[: lane.ndim] == lane.shape:
            running &= _spread(np.asarray(lane), len(shape))
    return [row.tobytes() for row in data.reshape(*shape, -1)[running]]


def _spread(lanes: Any, ndim: int) -> Any:
    return lanes.reshape(lanes.shape + (1,) * (ndim - lanes.ndim))


def _bound(eqn: Any, inputs: list[_Node]) -> list[_Node]:
    """The outputs of an operation as it is."""

    all_of_them = _Node.of(lambda *values: rebind(eqn, values), inputs)
    return [
        _Node.of(lambda outputs, k=k: outputs[k], [all_of_them])
        for k in range(len(eqn.outvars))
    ]


def _scan(eqn: Any, inputs: list[_Node], walk: Any) -> list[_Node]:
    num_consts, num_carry = scan_counts(eqn)
    consts, carry = inputs[:num_consts], inputs[num_consts:][:num_carry]
    xs, length = inputs[num_consts + num_carry :], eqn.params["length"]
    steps = range(length)[::-1] if eqn.params["reverse"] else range(length)
    rows: dict[int, list[_Node]] = {}
    for i in steps[:PASSES]:
        x = [_Node.of(lambda v, i=i: v[i], [v]) for v in xs]
        outputs = walk(eqn.params["jaxpr"], [*consts, *carry, *x])
        carry, rows[i] = outputs[:num_carry], outputs[num_carry:]
    if len(rows) < length or not length:
        return _bound(eqn, inputs)
    columns = zip(*(rows[i] for i in range(length)), strict=True)
    return [*carry, *(_Node.of(lambda *ys: jnp.stack(ys), ys) for ys in columns)]


def _while(
    cond: tuple[Any, list[_Node]],
    body: tuple[Any, list[_Node]],
    carry: list[_Node],
    lanes: tuple[_Node, ...],
) -> list[_Node]:
    """A loop; under `vmap` its condition is an array, and lanes end one by one."""
    for _ in range(PASSES):
        (test,) = cond[0](cond[1] + carry)
        if not np.any(test.get()):
            break
        new = body[0](body[1] + carry, lanes=(*lanes, test))
        pairs = zip(new, carry, strict=True)
        carry = [_Node.of(_where, [test, a, b]) for a, b in pairs]
    return carry


def _where(test: Array, new: Any, old: Any) -> Any:
    if jnp.shape(new)[: test.ndim] != test.shape:
        return new
    return jnp.where(_spread(test, jnp.ndim(new)), new, old)


def _is_call_of(body: Any, eqn: Any) -> bool:
    """Whether an operation hands all its inputs to a program, and gives its outputs."""

    def forms(variables: Any) -> list[Any]:
        avals = [v.aval for v in variables]
        return [(getattr(a, "shape", None), getattr(a, "dtype", None)) for a in avals]

    jaxpr = open_jaxpr(body)[0]
    same_inputs = forms(jaxpr.invars) == forms(eqn.invars)
    return same_inputs and forms(jaxpr.outvars) == forms(eqn.outvars)


def _place(eqn: Any) -> str:
    """The line of the user's code that an operation comes from."""
    frames = getattr(eqn.source_info.traceback, "frames", ())
    for frame in frames:
        if not frame.file_name.startswith(_NOT_THE_USERS):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"
    return f"`{eqn.primitive.name}`"


def _uses_inside(eqn: Equation) -> bool:
    """Whether a key is used, or cloned, by the programs that an operation holds."""
    _, *inner = within(eqn)
    names = ("random_split", "random_clone")
    return any(draws(e) or e.primitive.name in names for e in inner)


def _is_key(variable: Any) -> bool:
    return _has_key_dtype(variable.aval)


def _has_key_dtype(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
