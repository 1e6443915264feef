"""Whether a program draws from one key twice.

The program is walked with the values of its keys, and two keys are one if their bits
are. So it does not matter by which operations a key gets where it is used, and an
operation that JAX gets tomorrow is no gap: it is run. Only operations that hold
programs must be known; one that is not, and uses keys inside, is an error.

Values that no key depends on are not computed. Both sides of a branch are walked,
and what both use counts once, also where `vmap` has made a select of the branch.
"""

import functools as ft
import itertools as it
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ..._jaxprs.jaxpr import Equation, interpret, open_jaxpr, rebind, sub_jaxprs, within
from ..._jaxprs.table import kind, scan_counts, while_counts
from ..._tree import is_key_array
from .branches import Guards, exclusive, guards_in
from .law import Broken

PASSES = 16
"""How many passes of a loop are walked: a key that all share is seen in the second."""

# These take a key and give none, and yet do not use it up.
_LOOK = {"random_unwrap", "eq", "ne", "debug_callback", "debug_print"}

_FIRST_CLONE = 0xC10E0000

# Of the lines that lead to an operation, those of these are of no help.
_NOT_THE_USERS = tuple(
    os.path.join(os.path.dirname(m.__file__ or ""), "")
    for m in (jax, eqx, sys.modules["eqx_pipe"])
)


def draws(eqn: Any) -> bool:
    """Whether an operation draws random numbers: keys go in, and none come out."""
    if eqn.primitive.name == "rng_bit_generator":
        return True
    if eqn.primitive.name in _LOOK or any(sub_jaxprs(eqn)):
        return False
    return any(map(_is_key, eqn.invars)) and not any(map(_is_key, eqn.outvars))


def check_reuse(program: Any, args: Sequence[Any], is_given: Sequence[bool]) -> None:
    """Raises `Broken` if a key among the `args` that `is_given`, or one made of these,
    is used twice in a jaxpr, and `NotImplementedError` if that cannot be told.

    To split a key is to use it, to fold something into it is not, as in JAX's own
    check. Keys that do not come from those given are constants, and may be used again.
    """
    _Walk().run(_Where(), program, list(map(_Node, args, is_given)))


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


class _Where(NamedTuple):
    """Where in a program an operation stands.

    `guards` are the conditions under which it matters, `lanes` say which elements the
    loops around it still change, and `line` is where it is called, if JAX may have
    traced it for another caller.
    """

    guards: Guards = frozenset()
    lanes: tuple[_Node, ...] = ()
    line: str = ""


class _Walk:
    """The keys used so far, by their bits: where, and under which conditions."""

    def __init__(self) -> None:
        self.used: dict[bytes, tuple[tuple[Guards, str], ...]] = {}
        self.guards: dict[Any, tuple[Guards | None, ...]] = {}
        self.clones = it.count()

    def run(
        self, where: _Where, closed: Any, inputs: Sequence[_Node], **changes: Any
    ) -> list[_Node]:
        """The outputs of a jaxpr, with what changes about where it stands."""
        where = where._replace(**changes)
        jaxpr = open_jaxpr(closed)[0]
        if jaxpr not in self.guards:
            self.guards[jaxpr] = guards_in(jaxpr)
        own = iter(self.guards[jaxpr])

        def rule(eqn: Equation, given: list[_Node]) -> list[_Node]:
            further = next(own)
            if further is None:  # What comes out is not used.
                return _bound(eqn, given)
            inside = where._replace(guards=where.guards | further)
            return self.equation(eqn, given, inside)

        return interpret(closed, inputs, rule, _Node)

    def equation(self, eqn: Any, inputs: list[_Node], where: _Where) -> list[_Node]:
        """The outputs of one operation."""
        name, params = eqn.primitive.name, eqn.params
        if draws(eqn) or name == "random_split":
            for v, node in zip(eqn.invars, inputs, strict=True):
                if node.varies and (_is_key(v) or name == "rng_bit_generator"):
                    self.use(node, where._replace(line=where.line or _line(eqn)))
        if name == "random_clone":
            # Meant to be used again: for the walk another key, that no split gives.
            number = _FIRST_CLONE + next(self.clones)
            return [_Node.of(lambda key: jr.fold_in(key, number), inputs)]
        # A checkpoint that is differentiated runs what was run before again.
        if not _uses_inside(eqn) or params.get("differentiated"):
            return _bound(eqn, inputs)
        walk = ft.partial(self.run, where)
        if kind(eqn) == "branches":
            before = after = self.used
            for branch in params["branches"]:  # of which one will run
                self.used = dict(before)
                walk(branch, inputs[1:])
                after = after | self.used
            self.used = after
            return _bound(eqn, inputs)
        if name == "scan":
            return _scan(eqn, inputs, walk)
        if name == "while":
            n, m = while_counts(eqn)
            cond = ft.partial(walk, params["cond_jaxpr"]), inputs[:n]
            body = ft.partial(walk, params["body_jaxpr"]), inputs[n : n + m]
            return _while(cond, body, inputs[n + m :], where.lanes)
        if name == "eqx_pipe_refill" and params["size"] is None:
            n = params["num_consts"]
            cond = ft.partial(walk, params["cond"]), inputs[:n]
            body = ft.partial(walk, params["body"]), inputs[:n]
            return _while(cond, body, inputs[n:], where.lanes)
        bodies = list(sub_jaxprs(eqn))
        if len(bodies) == 1 and _is_call_of(bodies[0], eqn):
            return walk(bodies[0], inputs, line=where.line or _line(eqn))
        raise NotImplementedError(
            f"a key is used inside `{name}`, which is not understood"
        )

    def use(self, node: _Node, where: _Where) -> None:
        """Takes note of a use of keys, and raises `Broken` at the second."""
        fresh: set[bytes] = set()
        for key in _rows(node.get(), [v.get() for v in where.lanes]):
            if key in fresh:
                raise Broken(
                    "reuse",
                    f"one key is used in several lanes at {where.line}; split it, a "
                    "key for each lane, or draw once and hand in what was drawn",
                )
            for earlier, line in self.used.get(key, ()):
                if not exclusive(earlier, where.guards):
                    same = line == where.line
                    again = "and again" if same else f"and at {where.line}"
                    raise Broken(
                        "reuse",
                        f"one key is used at {line} {again}; split it first, or, if "
                        "this is meant, use its `jax.random.clone`",
                    )
            fresh.add(key)
        use = (where.guards, where.line)
        self.used |= {key: (*self.used.get(key, ()), use) for key in fresh}


def _rows(keys: Any, lanes: list[Any]) -> list[bytes]:
    """The bits of each key, but for those in lanes whose loop has ended."""
    if is_key_array(keys):
        shape, data = keys.shape, np.asarray(jr.key_data(keys))
    else:  # the state of `rng_bit_generator`
        shape, data = keys.shape[:-1], np.asarray(keys)
    running = np.ones(shape, bool)
    for lane in lanes:
        if shape[: lane.ndim] == lane.shape:
            running &= _broadcast(np.asarray(lane), len(shape))
    return [row.tobytes() for row in data.reshape(*shape, -1)[running]]


def _broadcast(lanes: Any, ndim: int) -> Any:
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
    return jnp.where(_broadcast(test, jnp.ndim(new)), new, old)


def _is_call_of(body: Any, eqn: Any) -> bool:
    """Whether an operation hands all its inputs to a program, and gives its outputs."""

    def forms(program: Any) -> Any:
        # By hand, since avals differ in more, such as in being weak.
        return [
            [
                (getattr(v.aval, "shape", None), getattr(v.aval, "dtype", None))
                for v in vs
            ]
            for vs in (program.invars, program.outvars)
        ]

    return forms(open_jaxpr(body)[0]) == forms(eqn)


def _line(eqn: Any) -> str:
    """The line of the user's code that an operation comes from."""
    for frame in getattr(eqn.source_info.traceback, "frames", ()):
        if not frame.file_name.startswith(_NOT_THE_USERS):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"
    return f"`{eqn.primitive.name}`"


def _uses_inside(eqn: Equation) -> bool:
    """Whether a key is used, or cloned, by the programs that an operation holds."""
    _, *inner = within(eqn)
    names = ("random_split", "random_clone")
    return any(draws(e) or e.primitive.name in names for e in inner)


def _is_key(variable: Any) -> bool:
    dtype = getattr(variable.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
