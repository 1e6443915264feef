"""What the functions of `parallelize` share: programs, and the shapes seen so far."""

import contextlib
import inspect
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jax.sharding import AxisType, Mesh

from .._errors import type_error, value_error
from .._types import Device, PyTree
from .constrain import axis_rules
from .derive import Function, Program, cache_key, derive, mesh_inside, struct_of
from .mesh import check_mesh, names_of, with_types
from .rules import AxisRules


class Plan:
    """What the returned functions share: the programs, and the structs seen so far.

    It is a cache: everything in it can be computed again.
    """

    def __init__(
        self,
        fun: Function,
        init: Callable[..., PyTree] | None,
        get: Callable[..., PyTree] | None,
        mesh: Mesh | None,
        rules: AxisRules | None,
    ):
        self.init, self.get, self.mesh, self.rules = init, get, mesh, rules
        self.params: PyTree | None = None
        self.batch: PyTree | None = None
        self.ahead: list[PyTree] = []  # a batch that was made for its shapes
        self.programs: dict[Hashable, Program] = {}

        def under_rules(params: PyTree, batch: PyTree) -> PyTree:
            with self.context():
                return fun(params, batch)

        self.fun = under_rules
        self.jitted = eqx.filter_jit(under_rules)

    def context(self) -> AbstractContextManager[object]:
        if self.rules is None or self.mesh is None:
            return contextlib.nullcontext()
        return axis_rules(self.rules, self.mesh)

    def program(self, params: PyTree, batch: PyTree) -> Program:
        struct = struct_of((params, batch))
        known = cache_key(struct)
        if self.mesh is None:
            self.mesh = mesh_for(mesh_inside(self.fun, struct), None, None)
        if known not in self.programs:
            self.programs[known] = derive(self.fun, struct, self.mesh)
        return self.programs[known]

    def shardings(self) -> tuple[PyTree, PyTree] | None:
        """Those of the parameters and the batch, if the shapes of both are known."""
        if self.params is None or self.batch is None:
            return None
        return self.program(self.params, self.batch).shardings

    def guess_params(self) -> None:
        """Learns the shapes of the parameters before they are made, if that can be."""
        if self.params is None and self.init is not None:
            self.params = _try(self.init, (jr.key(0),))

    def guess_batch(self) -> None:
        """Learns the shapes of a batch before one was asked for, if that can be.

        A function without arguments is called, and the batch kept for the first call;
        it may be an iterator's `next`.
        """
        if self.batch is not None or self.get is None:
            return
        if _required(self.get):
            self.batch = _try(self.get, (0, jr.key(0)))
        else:
            self.ahead.append(self.get())
            self.batch = struct_of(self.ahead[0])


def mesh_for(
    mesh: Mesh | None, devices: Sequence[Device] | None, rules: AxisRules | None
) -> Mesh:
    """The mesh with automatic axes, whose shardings the compiler derives."""
    if mesh is not None and devices is not None:
        raise value_error(
            "parallelize",
            "both `mesh` and `devices` were given.",
            "Give the mesh alone; it has its devices.",
        )
    if mesh is not None:
        check_mesh("parallelize", mesh)
        return with_types(mesh, AxisType.Auto)
    held = np.array(jax.devices() if devices is None else devices)
    if held.ndim != 1 or not all(isinstance(d, jax.Device) for d in held):
        raise type_error(
            "parallelize",
            f"`devices` is {devices!r}.",
            "Give a list of devices: `jax.devices()[:4]`.",
        )
    named = [] if rules is None else [n for _, a in rules.pairs for n in names_of([a])]
    axes = tuple(dict.fromkeys(named)) or ("devices",)
    shape = (held.size,) + (1,) * (len(axes) - 1)
    return Mesh(held.reshape(shape), axes, axis_types=(AxisType.Auto,) * len(axes))


def _required(fn: Callable[..., object]) -> list[str]:
    """The parameters of a function without which it cannot be called."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return []
    return [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def _try(fn: Callable[..., PyTree], candidates: Sequence[object]) -> PyTree | None:
    """The struct of what `fn` returns for the first candidate that it takes."""
    if len(_required(fn)) > 1:
        return None
    for candidate in candidates:
        try:
            return struct_of(eqx.filter_eval_shape(fn, candidate))
        except Exception:  # a guess that does not fit may fail in any way
            continue
    return None
