"""`kernel`: the call of a kernel by XLA, in place of a function under `vmap`."""

import ctypes
import functools as ft
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.custom_batching import custom_vmap

from .._captured import named
from .._check import check_callable
from .._jaxprs import as_function, open_jaxpr, trace
from .._tree import as_data, as_keys
from .._types import ClosedJaxpr
from . import arrays as arrays  # registers its rules
from .blocks import Result, kernel_code, lanes_of
from .llvm import Code, Engine, attributes, this_machine
from .scalars import program_of

_Output = TypeVar("_Output")

_stop = ctypes.c_ubyte(0)
_engines: dict[str, Engine] = {}


def kernel(
    fn: Callable[..., _Output], *, strict: bool = False
) -> Callable[..., _Output]:
    """Return a function with the same values, which under `vmap` is one native kernel.

    Under `jax.vmap`, XLA runs each operation of a loop for all points. A kernel runs
    the whole function for a few points at a time, whose numbers stay in registers.

    **Arguments:**

    - `fn`: a function of arrays with a loop.
    - `strict`: round each operation by itself.

    **Returns:** a function with the signature of `fn`.

    **Raises:**

    - `TypeError` if `fn` cannot be called.
    - `ValueError`, under `vmap`, if `fn` uses something that kernels do not support.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> def collatz(n):
        ...     step = lambda n: jnp.where(n % 2, 3 * n + 1, n // 2)
        ...     count = lambda c: (step(c[0]), c[1] + 1)
        ...     return jax.lax.while_loop(lambda c: c[0] > 1, count, (n, 0))[1]
        >>> ep.sweep(ep.kernel(collatz), ep.Values([1, 7, 27, 97])).values.tolist()
        [0, 16, 111, 118]
    """
    check_callable("kernel", "fn", fn, "Give a function of arrays: `kernel(fn)`.")

    def run(*args: Any, **kwargs: Any) -> _Output:
        dynamic, static = eqx.partition((args, kwargs), eqx.is_array)
        leaves, structure = jtu.tree_flatten(dynamic)
        outputs: Any = None

        def flat(*leaves: Any) -> list[Any]:
            nonlocal outputs
            args, kwargs = eqx.combine(jtu.tree_unflatten(structure, leaves), static)
            out, others = eqx.partition(fn(*args, **kwargs), eqx.is_array)
            out, tree = jtu.tree_flatten(out)
            outputs = tree, others
            return out

        jaxpr = trace(flat, *leaves)
        tree, others = outputs
        out = _lanes(jaxpr, leaves, strict)
        return eqx.combine(jtu.tree_unflatten(tree, out), others)

    # Not by `functools.wraps`, which would add the fields of a Module to the function.
    ft.update_wrapper(run, named(fn), updated=())
    vars(run)["__wrapped__"] = fn
    return run


def _lanes(jaxpr: ClosedJaxpr, leaves: Sequence[Any], strict: bool) -> list[Any]:
    """Return the outputs of a jaxpr, which under `vmap` is a kernel."""
    consts = list(jaxpr.consts)
    traced = [k for k, c in enumerate(consts) if not isinstance(c, np.ndarray)]

    def all_consts(given: Sequence[Any]) -> list[Any]:
        out = list(consts)
        for k, value in zip(traced, given, strict=True):
            out[k] = value
        return out

    @custom_vmap
    def call(given: list[Any], leaves: list[Any]) -> list[Any]:
        return as_function(jaxpr, all_consts(given))(*leaves)

    @call.def_vmap
    def _(size: int, batched: Any, given: list[Any], leaves: list[Any]) -> Any:
        if any(batched[0]):  # a nested `vmap` over what the function closes over
            raise NotImplementedError
        known = all_consts(given)
        out = _launch(jaxpr, known, size, batched[1], leaves, strict)
        return out, [True] * len(out)

    return call([consts[k] for k in traced], list(leaves))


def _launch(
    jaxpr: ClosedJaxpr,
    consts: Sequence[Any],
    size: int,
    batched: Sequence[bool],
    inputs: Sequence[Any],
    strict: bool,
) -> list[Any]:
    """Compute the outputs of all points by one kernel."""
    machine = this_machine()
    code = Code(lanes_of(machine.vector_bytes), strict)
    program = program_of(jaxpr, consts, inputs, batched)
    avals = [v.aval for v in open_jaxpr(jaxpr)[0].outvars]
    forms = [jax.eval_shape(as_data, a) for a in avals]
    results = [Result(f.dtype, math.prod(f.shape)) for f in forms]
    num_operands = len(program.operands)
    name = _built(kernel_code(program, results, code), num_operands, len(forms))
    padding = max(0, code.width - size)
    inputs = [
        jnp.pad(o.array, [(0, padding), *[(0, 0)] * (o.array.ndim - 1)], mode="edge")
        if o.lanes
        else jnp.asarray(o.array)
        for o in program.operands
    ]
    shapes = [jax.ShapeDtypeStruct((size + padding, *f.shape), f.dtype) for f in forms]
    out = jax.ffi.ffi_call(name, shapes)(*inputs)
    return [as_keys(x[:size], aval) for x, aval in zip(out, avals, strict=True)]


def _built(text: str, num_operands: int, num_results: int) -> str:
    """Return the name by which XLA knows a kernel, which is built at its first use."""
    machine = this_machine()
    text = "\n".join([text, _handler(num_operands, num_results), attributes(machine)])
    name = "eqx_pipe_" + hashlib.sha256((text + str(machine)).encode()).hexdigest()[:32]
    if name in _engines:
        return name
    engine = _engines[name] = Engine(text, machine)
    address = ctypes.c_void_p.from_address(engine.variable("stop"))
    address.value = ctypes.addressof(_stop)
    new: Any = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new(engine.address("handler"), None, None)
    jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    return name


def _handler(num_operands: int, num_results: int) -> str:
    """Return the function that XLA calls, by its typed foreign function interface."""
    return f"""
define ptr @handler(ptr %frame) {{
entry:
  %operands = alloca ptr, i64 {max(1, num_operands)}
  %results = alloca ptr, i64 {num_results}
  %extension_at = getelementptr i8, ptr %frame, i64 8
  %extension = load ptr, ptr %extension_at
  %extended = icmp ne ptr %extension, null
  br i1 %extended, label %extra, label %work
extra:
  %type_at = getelementptr i8, ptr %extension, i64 8
  %type = load i32, ptr %type_at
  %asked = icmp eq i32 %type, 1
  br i1 %asked, label %describe, label %work
describe:
  %metadata_at = getelementptr i8, ptr %extension, i64 24
  %metadata = load ptr, ptr %metadata_at
  %major = getelementptr i8, ptr %metadata, i64 24
  store i32 0, ptr %major
  %minor = getelementptr i8, ptr %metadata, i64 28
  store i32 1, ptr %minor
  ret ptr null
work:
  %operands_at = getelementptr i8, ptr %frame, i64 72
  %given = load ptr, ptr %operands_at
  %results_at = getelementptr i8, ptr %frame, i64 112
  %asked_for = load ptr, ptr %results_at
{_addresses("operands", "given", num_operands)}
{_addresses("results", "asked_for", num_results)}
  %first = load ptr, ptr %asked_for
  %dims_at = getelementptr i8, ptr %first, i64 40
  %dims = load ptr, ptr %dims_at
  %n = load i64, ptr %dims
  %stopped = call i32 @kernel(ptr %operands, ptr %results, i64 %n)
  ret ptr null
}}
"""


def _addresses(into: str, source: str, count: int) -> str:
    """Return the code that collects the addresses of the data of buffers."""
    lines = []
    for k in range(count):
        name = f"%{into}.{k}"
        lines += [
            f"  {name}.place = getelementptr ptr, ptr %{source}, i64 {k}",
            f"  {name}.buffer = load ptr, ptr {name}.place",
            f"  {name}.data_at = getelementptr i8, ptr {name}.buffer, i64 24",
            f"  {name}.data = load ptr, ptr {name}.data_at",
            f"  {name}.slot = getelementptr ptr, ptr %{into}, i64 {k}",
            f"  store ptr {name}.data, ptr {name}.slot",
        ]
    return "\n".join(lines)
