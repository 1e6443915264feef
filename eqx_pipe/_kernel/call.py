"""`kernel`: a function whose lanes run as native code under `vmap`.

A primitive stands for the function of one point. Under `vmap` it gets a number of
lanes, and on a CPU it is lowered to a call of native code, which is compiled and
registered with XLA at this moment: so a program that JAX reads from its persistent
cache finds its kernels. Elsewhere it is lowered to the function under `vmap`.
"""

import functools as ft
import itertools as it
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.experimental.key_reuse._core import key_reuse_signatures
from jax.extend.core import Primitive
from jax.extend.core.primitives import jit_p
from jax.interpreters import ad, batching, mlir

from .._cache import PROGRAMS
from .._captured import named
from .._check import check_bool, check_callable
from .._errors import value_error
from .._jaxprs import (
    Entry,
    Equation,
    array_text,
    as_function,
    bodies,
    by_jaxpr,
    effects,
    equations,
    evaluate,
    fingerprint_of,
    open_jaxpr,
    register,
    trace,
)
from .._tree import as_data, as_keys
from .._types import ClosedJaxpr
from . import arrays as arrays  # registers its rules
from . import interrupts
from .blocks import Result, kernel_code, lanes_of
from .failures import checked
from .ffi import registered
from .llvm import Code, this_machine
from .scalars import Program, Scalars, Writer, program_of, rule

_Output = TypeVar("_Output")


def kernel(
    fn: Callable[..., _Output], *, strict: bool = False
) -> Callable[..., _Output]:
    """Return a function with the same values, which under `vmap` is one native kernel.

    Under `jax.vmap`, XLA runs each operation of a loop for all points, and a
    `while_loop` until the slowest has finished. A kernel runs the whole function for a
    few points at a time, whose numbers stay in registers. This pays off for loops of
    arithmetic: solvers, maps, Monte Carlo methods, root finders. Without a loop there
    is little to gain. It needs `pip install 'eqx_pipe[kernels]'`, and a CPU: on other
    devices it is the function as it is, which `plan` says.

    **Arguments:**

    - `fn`: a function of arrays and PRNG keys of a point, such as a stage or a method
      of an Equinox module. Arrays that it closes over may change without another
      compilation; Python numbers are part of the kernel.
    - `strict`: whether to round each operation by itself, so that the bits of a result
      do not depend on the processor. By default `a * b + c` is rounded once, which is
      faster. (Keyword only.)

    **Returns:** a function with the signature of `fn`. Outside of `vmap`, and under
    `jax.disable_jit()`, it is `fn`; under `vmap`, also in `sweep`, `sweeper`,
    `eqx_pipe.vmap` and `explore`, its lanes are one kernel on each device. Nested
    `vmap`s are one `vmap`. Its derivatives are those of `fn`, without a kernel.

    **Raises:**

    - `TypeError` if `fn` cannot be called.
    - Under `vmap`, `ImportError` without llvmlite, and `ValueError` if `fn` uses what
      kernels do not support, with the primitive and the line, or is too long.

    `equinox.error_if` raises as usual. Ctrl-C stops kernels in the middle, also those
    that are queued; a sweep or training keeps what was finished before. A store belongs
    to the processor's instruction set and the versions of llvmlite and of C's library,
    on which rounding depends.

    **Laws:** each lane equals `fn` of its point, to rounding, under any `vmap`s; its
    bits do not depend on the other lanes or on their number. Integers, keys and random
    bits are exact. Since rounding differs, the number of steps of a chaotic or
    tolerance-controlled loop may differ.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> @ep.kernel
        ... def collatz(n):
        ...     step = lambda n: jnp.where(n % 2, 3 * n + 1, n // 2)
        ...     count = lambda c: (step(c[0]), c[1] + 1)
        ...     return jax.lax.while_loop(lambda c: c[0] > 1, count, (n, 0))[1]
        >>> ep.sweep(collatz, ep.Values([1, 7, 27, 97])).values.tolist()
        [0, 16, 111, 118]
    """
    check_callable("kernel", "fn", fn, "Give the function of a point: `kernel(fn)`.")
    check_bool("kernel", "strict", strict)

    # Not by `functools.wraps`, which would add the fields of a Module to the function.
    # What is pickled is a lambda with its two values.
    run: Any = ft.update_wrapper(
        lambda *args, **kwargs: _call(fn, strict, args, kwargs), named(fn), updated=()
    )
    vars(run)["__wrapped__"] = fn
    return run


def _call(
    fn: Callable[..., Any], strict: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        return fn(*args, **kwargs)  # Python loops: a debugger stops inside
    interrupts.begin()
    return by_jaxpr(ft.partial(_evaluate, strict), fn, args, kwargs)


def _evaluate(strict: bool, jaxpr: ClosedJaxpr, args: list[Any]) -> list[Any]:
    """Return the outputs of a kernel, whose derivatives are those of the function.

    Arrays that the function closes over are operands, so their values are not part of
    the code. Integers of NumPy are, since they may be places of elements, which have to
    be known when the code is written.
    """
    constants = [x.copy() if _is_position(x) else x for x in _constants(jaxpr)]
    operands = [x for x in constants if not _is_position(x)]

    def filled(*given: Any) -> list[Any]:
        rest = iter(given)
        own = [x if _is_position(x) else next(rest) for x in constants]
        return evaluate(jaxpr, own, list(rest))

    # It outlives the jaxpr: JAX would convert a NumPy array once for both, and so miss
    # a later change in place.
    closed = trace(filled, *operands, *args)
    return _bind([*operands, *args], jaxpr=closed, strict=strict)


def _constants(jaxpr: Any) -> list[Any]:
    """Return the arrays that a jaxpr closes over, in the order of `evaluate`."""
    inner, own = open_jaxpr(jaxpr)
    within = (_constants(body) for eqn in inner.eqns for body in bodies(eqn))
    return [*own, *it.chain.from_iterable(within)]


def _is_position(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "biu"


kernel_p = Primitive("eqx_pipe_kernel")
kernel_p.multiple_results = True
# JAX 0.12 requires a lowering rule for primitives whose parameters contain such a jaxpr
# (see `refill`).
kernel_p.is_high = lambda *_, **__: False  # pyright: ignore[reportAttributeAccessIssue]


def _bind(args: Sequence[Any], **params: Any) -> list[Any]:
    """Call the primitive: `jaxpr` and `strict` for a point, or `own` and `size`, too.

    Of `size` lanes each has its own row of the arguments that are `own`.
    """
    return kernel_p.bind(*args, **{"own": (), "size": None, **params})


def _plain(
    *args: Any, jaxpr: Any, own: Sequence[bool], size: int | None, **_: Any
) -> Any:
    """Return the outputs without native code."""
    if size is None:
        return as_function(jaxpr)(*args)
    axes = [0 if mine else None for mine in own]
    return jax.vmap(as_function(jaxpr), axes, axis_size=size)(*args)


@kernel_p.def_effectful_abstract_eval
def _abstract(*args: Any, jaxpr: Any, size: int | None, **_: Any) -> Any:
    lanes = () if size is None else (size,)
    outs = [v.aval for v in open_jaxpr(jaxpr)[0].outvars]
    types = [
        ShapedArray(
            (*lanes, *x.shape), x.dtype, weak_type=getattr(x, "weak_type", False)
        )
        for x in outs
    ]
    return types, frozenset(effects(jaxpr))


@kernel_p.def_impl
def _run(*args: Any, **params: Any) -> list[Any]:
    # Without `jit`, an eager call would run operation by operation. So does JAX if it
    # looks for the origin of a NaN, which it cannot see in a kernel.
    config: Any = jax.config
    if config.jax_debug_nans or config.jax_debug_infs:
        return jax.jit(lambda *args: _plain(*args, **params))(*args)
    # Each call traces the function again, so programs are found by what they compute.
    program = fingerprint_of(params["jaxpr"])
    options = (params[name] for name in ("own", "size", "strict"))
    positions = map(array_text, program.constants)
    key = kernel_p.name, program.key, *positions, *options
    kept, run = PROGRAMS.get(key) or (program, None)
    if run is None or not kept.still_valid():
        run = jax.jit(lambda *args: _bind(args, **params))
        PROGRAMS.put(key, (program.without_constants(), run))
    return run(*args)


def _batch(
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    jaxpr: Any,
    own: Sequence[bool],
    size: int | None,
    strict: bool,
) -> tuple[list[Any], list[int]]:
    if any(
        getattr(effect, "name", None) == axis_data.name for effect in effects(jaxpr)
    ):
        raise value_error(
            "kernel",
            f"`fn` uses the axis {axis_data.name!r} of `vmap`, and the points of a "
            "kernel run without each other.",
            "Use the axis outside of the kernel, or sweep `fn` itself.",
        )
    outer, inner = axis_data.size, 1 if size is None else size
    own = own or (False,) * len(args)

    def rows(x: Any, dim: int | None, mine: bool) -> Any:
        """Return the rows of an argument: those of the outer axis vary slowest."""
        if dim is None and not mine:
            return x
        x = jnp.expand_dims(x, 0) if dim is None else jnp.moveaxis(x, dim, 0)
        x = x if mine else jnp.expand_dims(x, 1)
        shape = x.shape[2:]
        return jnp.broadcast_to(x, (outer, inner, *shape)).reshape(
            outer * inner, *shape
        )

    found = [*map(rows, args, dims, own)]
    marks = [mine or dim is not None for mine, dim in zip(own, dims, strict=True)]
    if jax.default_backend() == "cpu":
        _lane_of(jaxpr, tuple(marks))  # refuses what is not supported
    params = {"jaxpr": jaxpr, "own": tuple(marks), "strict": strict}
    out = _bind(found, size=outer * inner, **params)
    if size is not None:
        out = [x.reshape(outer, inner, *x.shape[1:]) for x in out]
    return out, [0] * len(out)


batching.fancy_primitive_batchers[kernel_p] = _batch


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    tangents = [
        ad.instantiate_zeros(t) if isinstance(t, ad.Zero) else t for t in tangents
    ]
    return jax.jvp(ft.partial(_plain, **params), list(primals), tangents)


ad.primitive_jvps[kernel_p] = _jvp


class _Lane(NamedTuple):
    """The scalar program of a function.

    `shared` computes the program's operands from the arguments of the function. Of the
    function itself only the types of `outputs` are here, so that it can be collected.
    """

    program: Program
    shared: ClosedJaxpr
    outputs: list[Any]


_LANES: weakref.WeakKeyDictionary[Any, dict[Any, _Lane]] = weakref.WeakKeyDictionary()


def _lane_of(jaxpr: Any, own: tuple[bool, ...]) -> _Lane:
    """Return the program of a lane, made once for each trace of a function."""
    known = _LANES.setdefault(jaxpr, {})
    if own not in known:
        inner, consts = open_jaxpr(jaxpr)
        program: Any = None

        def operands(*args: Any) -> list[Any]:
            nonlocal program
            program = program_of(inner, consts, args, own)
            arrays = [operand.array for operand in program.operands]
            # Without the arrays, which are tracers of this trace.
            bare = [operand._replace(array=None) for operand in program.operands]
            program = program._replace(operands=bare)
            return arrays

        shared = trace(operands, *(v.aval for v in inner.invars))
        outputs = [as_data(_struct(v.aval)) for v in inner.outvars]
        outputs += [jax.ShapeDtypeStruct((), "int32")] * bool(program.raisers)
        known[own] = _Lane(program, shared, outputs)
    return known[own]


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _native(
    *args: Any, jaxpr: Any, own: Sequence[bool], size: int | None, strict: bool
) -> list[Any]:
    """Return the outputs by native code: the lowering on a CPU."""
    if not size:
        return _plain(*args, jaxpr=jaxpr, own=own, size=size)
    program, shared, structs = _lane_of(jaxpr, tuple(own))
    width = lanes_of(program, this_machine().vector_bytes)
    arrays = as_function(shared)(*args)
    results = [Result(np.dtype(s.dtype), s.size) for s in structs]
    text = kernel_code(program, results, Code(width, strict))
    name = registered(text, len(arrays), len(results))
    shapes = [jax.ShapeDtypeStruct((size, *s.shape), s.dtype) for s in structs]
    found = jax.ffi.ffi_call(name, shapes)(*arrays)
    found = checked(program.raisers, list(found))
    avals = [v.aval for v in open_jaxpr(jaxpr)[0].outvars]
    return [as_keys(x, aval) for x, aval in zip(found, avals, strict=True)]


mlir.register_lowering(kernel_p, mlir.lower_fun(_plain, multiple_results=True))
_lower = mlir.lower_fun(_native, multiple_results=True)
mlir.register_lowering(kernel_p, _lower, platform="cpu")
key_reuse_signatures[kernel_p] = key_reuse_signatures[jit_p]  # of its `jaxpr`

register(
    kernel_p.name,
    # Its values depend on each input, and its loops do not wait for other lanes.
    Entry("operation", flow=lambda flow, eqn, _: [True] * len(eqn.outvars)),
)


@rule(kernel_p.name)
def _inside(writer: Writer, eqn: Equation, *inputs: Scalars) -> Sequence[Scalars]:
    """Write a kernel that another one calls as a part of it."""
    structs = [v.aval for v in eqn.invars]
    jaxpr = trace(ft.partial(_plain, **eqn.params), *structs)
    return writer.run_inside(jaxpr, inputs)


def has_kernels(jaxpr: Any) -> bool:
    """Return whether a program has kernels."""
    return any(eqn.primitive is kernel_p for eqn in equations(jaxpr))
