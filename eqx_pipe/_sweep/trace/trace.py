"""The function of a point as a jaxpr from positions on the dims to output leaves.

The function is traced once, on an abstract point. Stores compare this jaxpr, since it
does not depend on the lengths of axes. The kernel evaluates it at the point that it
computes from the positions.
"""

import dataclasses
import functools as ft
import types
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from ..._errors import type_error, value_error
from ..._jaxprs import (
    Fingerprint,
    Split,
    as_function,
    counted,
    draws_together,
    evaluate,
    fingerprint_of,
    on_values,
    open_jaxpr,
    refs_of,
    split_of,
)
from ..._jaxprs import trace as trace_jaxpr
from ..._kernel import has_kernels
from ..._keys import rbg_error
from ..._run import call, fn_name
from ..._spaces import Geometry, Space
from ..._tree import as_data, can_be_traced, leaf_text
from ..._types import ClosedJaxpr, Key, PyTree
from ..._vmap import Analysis, analyze

# The settings that affect a trace. A worker uses the same ones.
_SETTINGS = (
    "enable_x64",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
    "default_matmul_precision",
    "default_prng_impl",
    "threefry_partitionable",
    "debug_nans",
    "debug_infs",
)

LONG = 2**26
"""The estimated operations of a loop, over a batch, from which on it can be left.

A batch with fewer takes 1 to 70 milliseconds, and its program is not split: that would
double the time of its compilation, and cost about 40 microseconds for each batch.
"""

LONG_ELSEWHERE = 2**34
"""The same on other devices: about 20 milliseconds at 10^12 operations a second.

It is an estimate, since nothing was run on a device. A GPU asks the host after each
step of a loop whose length is data, so a piece should be long beside a launch.
"""

_FIXED = 12
"""The lanes that take as long as the fixed cost of a step, on a CPU."""


@dataclasses.dataclass(frozen=True)
class Traced:
    """The user's function, traced on an abstract `point`.

    `jaxpr` takes `num_arrays` arrays (`arrays_of` the space), one `int32` position for
    each dim, and the point's key if there is one. Arrays that the function closes
    over are its constants; `own` is the jaxpr of the function alone. `name` is the
    function's, which may be collected.
    """

    name: str
    point: PyTree
    own: ClosedJaxpr
    structure: Any
    outputs: list[jax.ShapeDtypeStruct]
    jaxpr: Any
    num_arrays: int

    @property
    def has_effects(self) -> bool:
        """True if it prints, writes or calls back, so that the number of runs matters.

        `equinox.error_if` does not count, since its callback is pure for JAX.
        """
        return bool(self.jaxpr.effects)

    @ft.cached_property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the jaxpr, with its constants."""
        return fingerprint_of(self.jaxpr)

    @ft.cached_property
    def has_kernels(self) -> bool:
        """True if it calls a `kernel`."""
        return has_kernels(self.own)

    def detached(self) -> "Traced":
        """Return the same function, unaffected by changes of arrays in place."""
        own, jaxpr = detached(self.own), detached(self.jaxpr)
        return dataclasses.replace(self, own=own, jaxpr=jaxpr)

    def counting(self) -> "Traced":
        """Return the same function with the outputs `(output, needed, executed)`."""
        if self.has_kernels:
            raise value_error(
                "sweep",
                "`count_steps` is True, and the steps in kernels are not counted.",
                "Count the steps of the function itself, without `kernel`.",
            )
        number, leaf = jax.ShapeDtypeStruct((), jnp.uint32), jtu.tree_structure(0)
        jaxpr = trace_jaxpr(
            lambda *args: counted(self.jaxpr, args), *_inputs(self.jaxpr)
        )
        structure = jtu.treedef_tuple((self.structure, leaf, leaf))
        outputs = [*self.outputs, number, number]
        return dataclasses.replace(
            self, jaxpr=jaxpr, structure=structure, outputs=outputs
        )

    @ft.cached_property
    def analysis(self) -> Analysis:
        """The analysis of the jaxpr."""
        inputs = len(open_jaxpr(self.jaxpr)[0].invars)
        varies = [k >= self.num_arrays for k in range(inputs)]
        return analyze(self.jaxpr, varies)

    def split(self, batch_size: int, platform: str = "cpu") -> Split | None:
        """Return the program for batches, split at its long loops if it has any.

        Effects must happen once, so a program with effects is not split.
        """
        on_cpu, constants = platform == "cpu", self.fingerprint.constants
        least = (LONG if on_cpu else LONG_ELSEWHERE) / (batch_size + _FIXED)
        if least not in self._splits:
            self._splits[least] = None
            if not self.has_effects:
                split = split_of(self.jaxpr, constants, least, not on_cpu)
                self._splits[least] = split
        return self._splits[least]

    @ft.cached_property
    def _splits(self) -> dict[float, Split | None]:
        return {}

    @ft.cached_property
    def stored(self) -> list[jax.ShapeDtypeStruct]:
        """The output leaves as they are stored: PRNG keys as raw data."""
        return list(map(as_data, self.outputs))


def trace(
    function: str,
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    plain: Sequence[int],
    geometry: Geometry,
) -> Traced:
    """Trace `fn` on an abstract point of `space`, whose geometry is `geometry`.

    `plain` has a position for each dim, for the values of `Static` axes.
    """
    at = geometry.tabled
    arrays, static = eqx.partition((untabled(geometry), space.key), can_be_traced)
    alone: dict[str, Any] = {}

    def flat(
        arrays: PyTree, rows: list[Any], digits: list[Any], key: Key | None
    ) -> list[Any]:
        leaves, space_key = eqx.combine(arrays, static)
        leaves = list(leaves)
        for (index, _, _), row in zip(at, rows, strict=True):
            leaves[index] = leaves[index].at_row(row)
        point = geometry.point(leaves, space_key, digits, plain)
        alone.update(_on_point(function, fn, point, key))
        leaves = jtu.tree_leaves((eqx.filter(point, _is_tracer), key))
        return as_function(alone["own"])(*leaves)

    digits = [jax.ShapeDtypeStruct((), jnp.int32)] * len(geometry.lengths)
    # Use plain types: an array made under the user's mesh has that mesh in its type.
    structs = jtu.tree_map(abstract, (arrays, key))
    rows = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for _, _, x in at]
    jaxpr: Any = jax.make_jaxpr(flat)(structs[0], rows, digits, structs[1])
    leaves = jtu.tree_leaves(arrays)
    check_concrete(function, [*jaxpr.consts, *leaves, key])
    return Traced(fn_name(fn), **alone, jaxpr=jaxpr, num_arrays=len(leaves))


def detached(jaxpr: Any) -> Any:
    """Return a jaxpr with copies of the NumPy arrays that it closes over.

    JAX converts a NumPy array once, and reuses the result while a jaxpr holds it. So a
    jaxpr that lives longer than a call would hide later changes of the array from every
    other trace; and if there is nothing to convert, it would itself see them.
    """
    constants = fingerprint_of(jaxpr).constants
    if len(constants) > len(jaxpr.consts):
        # An inner `jit` holds arrays: move them to the outer jaxpr.
        outer = ft.partial(evaluate, jaxpr, constants)
        jaxpr = trace_jaxpr(lambda *args: outer(args), *_inputs(jaxpr))
    consts = [x.copy() if isinstance(x, np.ndarray) else x for x in jaxpr.consts]
    return jaxpr.replace(consts=consts)


def _inputs(jaxpr: Any) -> list[jax.ShapeDtypeStruct]:
    """Return the types of the inputs of a jaxpr."""
    return [abstract(v.aval) for v in open_jaxpr(jaxpr)[0].invars]


def _on_point(
    function: str, fn: Callable[..., Any], point: PyTree, key: Key | None
) -> dict[str, Any]:
    """Return the fields of `Traced` for the function alone."""
    arrays, static = eqx.partition(point, _is_tracer)
    structs = jtu.tree_map(abstract, (arrays, key))

    def on_point(point: PyTree, key: Key | None = None) -> PyTree:
        return call(function, fn, eqx.combine(point, static), key)

    if isinstance(fn, types.FunctionType):
        # With this, JAX's messages name the user's function, its file and its
        # parameter: "depends on the value of the argument p['n']".
        vars(on_point)["__wrapped__"] = fn
    make: Any = jax.make_jaxpr(on_point, return_shape=True)
    jaxpr, out = make(*structs) if key is not None else make(structs[0])
    outputs, structure = jtu.tree_flatten(out)
    refs, changed = refs_of(jaxpr)
    if changed:
        raise value_error(
            function,
            f"`fn` writes to a reference that points share, {leaf_text(changed[0])}.",
            "Return the value; a reference that `fn` makes may change.",
        )
    if refs:
        with jax.ensure_compile_time_eval():  # not in the trace around
            values = [ref[...] for ref in refs]
        jaxpr = trace_jaxpr(
            ft.partial(on_values(jaxpr, refs), *values), *_inputs(jaxpr)
        )
    if draws_together(jaxpr, 1):
        pairs = [jax.ShapeDtypeStruct((2, *s.shape), s.dtype) for s in _inputs(jaxpr)]
        if draws_together(trace_jaxpr(jax.vmap(as_function(jaxpr)), *pairs)):
            raise rbg_error(function, "`fn` draws from keys")
    return {
        "point": eqx.combine(structs[0], static),
        "own": jaxpr,
        "structure": structure,
        "outputs": outputs,
    }


def _is_tracer(x: Any) -> bool:
    return isinstance(x, Tracer)


def arrays_of(geometry: Geometry, key: Key | None) -> list[Any]:
    """Return the arrays of a space and its key, in the order of a trace."""
    return list(filter(can_be_traced, jtu.tree_leaves((untabled(geometry), key))))


def untabled(geometry: Geometry) -> list[Any]:
    """Return the leaves of a space, without the tables that a kernel reads."""
    leaves = list(geometry.leaves)
    for index, _, _ in geometry.tabled:
        axis = leaves[index]
        # Equinox makes a module for each access to a method of an instance.
        leaves[index] = type(axis).at_row(axis, None)
    return leaves


def check_concrete(function: str, arrays: Sequence[Any]) -> None:
    """Raise a `TypeError` if any of the arrays is traced."""
    if any(isinstance(x, Tracer) for x in arrays):
        raise type_error(
            function,
            "`fn` or `space` holds traced values.",
            "A sweep runs on the host. Under `jit`, `grad` or `vmap` use "
            "`eqx_pipe.vmap_space`, which is a pure function.",
        )


def settings() -> dict[str, Any]:
    """Return the settings of JAX that programs depend on."""
    return {name: getattr(jax.config, f"jax_{name}") for name in _SETTINGS}


def abstract(x: Any) -> jax.ShapeDtypeStruct:
    """Return an array as an argument of a trace: its type, without its mesh."""
    # Weak types and 64 bits are as in the program.
    weak = bool(getattr(x, "weak_type", False))
    dtype = jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(x.shape, dtype, weak_type=weak)
