"""Running a jaxpr whose closed-over arrays are handed in from outside.

Here a sweep's function gets into its program.
"""

import contextlib
import itertools as it
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.core import eval_jaxpr
from jax.sharding import NamedSharding, Sharding

from ..._choose.primitive import bind, trace
from ..._jaxprs.cache_key import bodies, num_constants
from ..._jaxprs.jaxpr import open_jaxpr as opened
from ..._jaxprs.jaxpr import sub_jaxprs
from ..._refill.loop import loop

# What places an array on the user's mesh has no meaning on one device of the sweep.
_PLACEMENTS = {"sharding_constraint", "mesh_cast", "reshard"}


def evaluate(jaxpr: Any, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The outputs of a jaxpr, with `constants` in the place of its own arrays.

    They come in the order in which `identify` found them: the jaxpr's own, then those
    inside of its equations. JAX keeps the arrays that an inner `jit` closes over
    inside of it, where they would be compiled in, so such equations are taken apart.
    So are those that remember the user's mesh, which is not that of the sweep.
    """
    return _run(jaxpr, iter(constants), args)


def _run(closed: Any, constants: Iterator[Any], args: Sequence[Any]) -> list[Any]:
    jaxpr, own = opened(closed)
    consts = [next(constants) for _ in own]
    if not _taken_apart(closed):
        return eval_jaxpr(jaxpr, consts, *args)
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))

    def read(v: Any) -> Any:
        return v.val if hasattr(v, "val") else values[v]

    for eqn in jaxpr.eqns:
        inputs = [read(v) for v in eqn.invars]
        placed = _on_a_mesh(eqn)
        with contextlib.nullcontext() if placed else eqn.ctx.manager:
            if placed and eqn.primitive.name in _PLACEMENTS:
                outputs = inputs
            elif placed or _closes_over_arrays(eqn):
                outputs = _equation(eqn, constants, inputs)
            else:
                outputs = _bind(eqn, eqn.params, inputs)
        values |= dict(zip(eqn.outvars, outputs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _equation(eqn: Any, constants: Iterator[Any], inputs: list[Any]) -> list[Any]:
    """An equation with its jaxprs run by `_run`."""
    params, name = eqn.params, eqn.primitive.name
    # Lists, since JAX may trace a body more than once.
    owned = [[next(constants) for _ in range(num_constants(b))] for b in bodies(eqn)]
    runs = [
        lambda *a, body=body, own=own: _run(body, iter(own), a)
        for body, own in zip(bodies(eqn), owned, strict=True)
    ]
    if name in ("eqx_pipe_choose", "remat2"):
        return _with_arguments(eqn, owned, inputs)
    if name == "scan":
        closed, init, xs = _split(inputs, *scan_counts(params))

        def step(carry: list[Any], x: list[Any]) -> Any:
            outputs = runs[0](*closed, *carry, *x)
            return outputs[: len(init)], outputs[len(init) :]

        keywords = {k: params[k] for k in ("length", "reverse", "unroll")}
        carry, ys = jax.lax.scan(step, init, xs, **keywords)
        return [*carry, *ys]
    if name == "while":
        counts = params["cond_nconsts"], params["body_nconsts"]
        for_cond, for_body, init = _split(inputs, *counts)

        def test(carry: list[Any]) -> Any:
            return runs[0](*for_cond, *carry)[0]

        def step(carry: list[Any]) -> list[Any]:
            return runs[1](*for_body, *carry)

        return jax.lax.while_loop(test, step, init)
    if name == "eqx_pipe_refill":
        own, init, _ = _split(inputs, params["num_consts"], len(eqn.outvars))
        return loop(runs[0], runs[1], own, init, params["size"], params["spread"])
    if name == "cond":
        return list(jax.lax.switch(inputs[0], runs, *inputs[1:]))
    if runs:
        return runs[0](*inputs)
    placeless = {
        k: None if isinstance(v, Sharding) else v for k, v in eqn.params.items()
    }
    return _bind(eqn, placeless, inputs)


def _with_arguments(
    eqn: Any, owned: Sequence[list[Any]], inputs: list[Any]
) -> list[Any]:
    """An equation that cannot be made anew of functions, only of jaxprs.

    What they close over becomes their first arguments.
    """
    given = list(it.chain(*owned))
    ends = list(it.accumulate(map(len, owned), initial=0))

    def closed(k: int, args: Sequence[Any]) -> Any:
        body, mine = bodies(eqn)[k], slice(ends[k], ends[k + 1])
        return trace(
            lambda *a: _run(body, iter(a[mine]), a[len(given) :]), *given, *args
        )

    params = eqn.params
    if eqn.primitive.name == "remat2":
        params = {**params, "jaxpr": opened(closed(0, inputs))[0]}
        return _bind(eqn, params, [*given, *inputs])
    index, *operands = inputs
    branches = [closed(k, operands) for k in range(len(owned))]
    return bind(
        index, [*given, *operands], branches, params["owners"], params["num_linear"]
    )


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # since JAX 0.12
    return len(consts), len(carry)


def _split(
    values: list[Any], first: int, second: int
) -> tuple[list[Any], list[Any], list[Any]]:
    both = first + second
    return values[:first], values[first:both], values[both:]


def _bind(eqn: Any, params: dict[str, Any], inputs: list[Any]) -> list[Any]:
    outputs = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(params))
    return outputs if eqn.primitive.multiple_results else [outputs]


def _taken_apart(closed: Any) -> bool:
    return any(
        _on_a_mesh(eqn) or _closes_over_arrays(eqn) for eqn in opened(closed)[0].eqns
    )


def _closes_over_arrays(eqn: Any) -> bool:
    """Whether arrays are closed over inside of an equation."""
    return any(num_constants(b) or _taken_apart(b) for b in bodies(eqn))


def _on_a_mesh(eqn: Any) -> bool:
    """Whether an equation remembers a mesh, in the type of an array or in itself."""
    if any(_has_mesh(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return True
    if any(isinstance(v, NamedSharding) for v in eqn.params.values()):
        return True
    return any(_on_a_mesh(e) for body in sub_jaxprs(eqn) for e in opened(body)[0].eqns)


def _has_mesh(aval: Any) -> bool:
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    return mesh is not None and not mesh.empty
