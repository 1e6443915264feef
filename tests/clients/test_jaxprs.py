"""The table of JAX's primitives is complete and right for this version of JAX."""

import re
from pathlib import Path

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.extend.core.primitives as primitives
import jax.numpy as jnp
import jax.random as jr
import lineax as lx
import numpyro
import numpyro.distributions as dist
import optimistix as optx
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching
from jax.sharding import AbstractMesh, PartitionSpec

import eqx_pipe as ep
from eqx_pipe._jaxprs import (
    TABLE,
    depends_on,
    entry,
    equations,
    is_jaxpr,
    kind,
    may_loop_or_call_back,
    sub_jaxprs,
    trace,
)

# They hide a program in their parameters, have references that others write to, or are
# only used in rare places: they may do anything, and what asks the table takes care.
# Before any test runs: some tests make primitives of their own.
KNOWN_TO_JAX = {p.name for p in vars(primitives).values() if isinstance(p, Primitive)}
KNOWN_TO_JAX |= {p.name for p in batching.fancy_primitive_batchers}

MAY_DO_ANYTHING = re.compile(
    """
    bcoo_.* | bcsr_.* | coo_.* | csr_.* | todense | spsolve | .*_start | .*_done |
    call | call_exported | call_hi_primitive.* | vprim | core_map | run_state |
    remat_opt | custom_lin | custom_partitioning | create_linear | ffi_call |
    noinline | stage | linear_solve | announce_jaxpr | check | shape_assertion |
    inspect_sharding | .*_ref | .*_box | box_.* | log_read | log_extend | new_log |
    get | swap | addupdate | freeze | pin | unpin | unreachable | dce_sink | consume |
    assert_consumed_value |
    dim_as_value | psend | precv | dot_product_attention_.* | scaled_matmul.* |
    unreduced_.* | .*_cast_p | vary_unreduced_cast | with_memory_space_constraint |
    all_gather_reduced | relayout | pbroadcast_dynamic | random_.*_internal |
    global_array_to_host_local_array | host_local_array_to_global_array
    """,
    re.VERBOSE,
)

X = jnp.arange(1.0, 5.0)
SQUARE = jnp.eye(4) + 0.1


@jax.custom_jvp
def _jvp(x):
    return jnp.sin(x)


@_jvp.defjvp
def _(primals, tangents):
    return _jvp(*primals), tangents[0] * jnp.cos(primals[0])


@jax.custom_vjp
def _vjp(x):
    return jnp.sin(x)


_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))


@jax.custom_batching.custom_vmap
def _vmap(x):
    return jnp.sin(x)


@_vmap.def_vmap
def _(size, batched, x):
    return jnp.sin(x), batched[0]


def _ode(x):
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -y), diffrax.Tsit5(), 0.0, 1.0, 0.1, x
    )
    return solution.ys


def _model(x):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("x", dist.Poisson(rate), obs=jnp.round(x))


def _density(x):
    return numpyro.infer.util.log_density(_model, (x,), {}, {"rate": x[0]})[0]


def _ring(x):
    mesh = AbstractMesh((1,), ("ring",))
    spec = PartitionSpec()
    map_ = jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)
    return map_(x)


def _reduce(x):
    return lax.reduce(x, 0.0, lambda a, b: a + 2 * b, (0,))


PROGRAMS = {
    "jit": lambda x: jax.jit(jnp.sin)(x),
    "checkpoint": lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x),
    "custom_jvp": _jvp,
    "custom_vjp": _vjp,
    "custom_vmap": _vmap,
    "gradients": jax.grad(lambda x: jax.checkpoint(_jvp)(_vjp(x)).sum()),
    "scan": lambda x: lax.scan(lambda c, a: (c + a, c * 2), 0.0, x),
    "map": lambda x: lax.map(jnp.sin, x),
    "while": lambda x: lax.while_loop(lambda v: v[0] > 0, lambda v: v - 1, x),
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, v: v + i, x),
    "cond": lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
    "switch": lambda x: lax.switch(x[0].astype(int), [jnp.sin, jnp.cos, jnp.tan], x),
    "solve": lambda x: lax.custom_linear_solve(
        lambda v: 2 * v, x, lambda matvec, b: b / 2, lambda vecmat, b: b / 2
    ),
    "reduce": _reduce,
    "windows": lambda x: lax.reduce_window(
        x, 0.0, lambda a, b: a + 2 * b, (2,), (1,), "SAME"
    ),
    "scatter": lambda x: x.at[jnp.array([0, 2])].add(1.0).at[1].max(3.0),
    "shard_map": _ring,
    "callbacks": lambda x: jax.pure_callback(lambda x: x, x, x),
    "debug": lambda x: (jax.debug.print("{}", x), jax.debug.callback(print, x))[1],
    "linalg": lambda x: (jnp.linalg.svd(SQUARE * x[0]), jnp.linalg.inv(SQUARE * x[0])),
    "random": lambda x: jr.gamma(jr.clone(jr.key(0)), x) + jr.choice(jr.key(1), x),
    "error_if": lambda x: eqx.error_if(x, x[0] > 0, "large"),
    "eqx loop": lambda x: eqxi.while_loop(
        lambda v: v[0] > 0, lambda v: v - 1, x, max_steps=8, kind="checkpointed"
    ),
    "diffrax": _ode,
    "lineax": lambda x: lx.linear_solve(lx.MatrixLinearOperator(SQUARE), x).value,
    "optimistix": lambda x: (
        optx.root_find(lambda y, a: y**2 - a, optx.Newton(1e-3, 1e-3), x, x).value
    ),
    "numpyro": _density,
    "choice": lambda x: ep.cond(lambda x: x[0] > 0, jnp.sin, jnp.cos)(x),
    "choices": jax.vmap(ep.cond(lambda x: x > 0, jnp.sin, jnp.cos)),
    "refill": jax.vmap(
        ep.refill(
            lambda x: (x, jax.lax.while_loop(lambda c: c > 0, lambda c: c - 1, x))
        )
    ),
}


@pytest.fixture(scope="module")
def traced():
    return {name: trace(program, X) for name, program in PROGRAMS.items()}


def test_every_primitive_is_in_the_table_or_may_do_anything():
    new = [n for n in KNOWN_TO_JAX - set(TABLE) if not MAY_DO_ANYTHING.fullmatch(n)]
    assert not new, (
        f"JAX {jax.__version__} (or a library) has new primitives: {sorted(new)}. Put "
        "each into `eqx_pipe/_jaxprs/table.py`, or, if it may do anything, into "
        "`MAY_DO_ANYTHING` of this test."
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_jaxprs_of_an_equation_are_where_the_table_says(name, traced):
    for eqn in equations(traced[name]):
        primitive = entry(eqn)
        if primitive.kind is None:
            assert MAY_DO_ANYTHING.fullmatch(eqn.primitive.name), eqn.primitive
            continue
        held = {
            key
            for key, value in eqn.params.items()
            if any(map(is_jaxpr, value if isinstance(value, tuple) else (value,)))
        }
        assert held <= set(primitive.bodies) or primitive.kind == "operation", (
            eqn.primitive
        )
        if primitive.kind == "call":
            (body,) = sub_jaxprs(eqn)
            assert len(body.invars if hasattr(body, "invars") else body.in_avals) == (
                len(eqn.invars)
            )


def test_which_programs_may_loop_or_call_back(traced):
    quiet = {name for name, jaxpr in traced.items() if not may_loop_or_call_back(jaxpr)}
    loud = {"while", "callbacks", "debug", "error_if", "eqx loop", "diffrax"}
    loud |= {"lineax", "optimistix", "refill"}
    assert not quiet & loud
    assert {"jit", "checkpoint", "scan", "cond", "custom_vmap", "reduce"} <= quiet


def test_an_unknown_primitive_may_do_anything():
    new = Primitive("test_of_something_new")
    new.def_abstract_eval(lambda x: x)
    jaxpr = trace(jax.jit(new.bind), X)
    assert [kind(eqn) for eqn in equations(jaxpr)] == ["call", None]
    assert may_loop_or_call_back(jaxpr)


def _differs(fn, marks):
    """Return which outputs `vmap` batches if these inputs are batched."""
    seen = []

    def note(*args):
        out = fn(*args)
        seen[:] = [getattr(y, "batch_dim", None) is not None for y in out]
        return out

    axes = [0 if mark else None for mark in marks]
    jax.eval_shape(jax.vmap(note, axes, axis_name="batch"), *_given(marks))
    return seen


def _given(marks):
    return [jnp.ones((3,)) if mark else jnp.ones(()) for mark in marks]


def _looped(a, b, c):
    return lax.while_loop(
        lambda v: v[0] > 0, lambda v: (v[0] - 1, v[2], v[2]), (a, b, c)
    )


def _scanned(a, b, c):
    return *lax.scan(lambda v, _: ((v[1], v[1]), c), (a, b), length=3)[0], c


FLOWS = {
    "jit": lambda a, b, c: jax.jit(lambda a, b: (a * 2, b))(a, c),
    "checkpoint": lambda a, b, c: jax.checkpoint(lambda a, b: (a, b * 2))(a, b),
    "custom_vjp": lambda a, b, c: (_vjp(a), _vjp(b * c)),
    "cond": lambda a, b, c: lax.cond(c > 0, lambda: (a, b), lambda: (a * 2, a)),
    "while": _looped,
    "scan": _scanned,
    "sum": lambda a, b, c: (lax.psum(a, "batch"), b + c),
    "position": lambda a, b, c: (jax.jit(lambda: lax.axis_index("batch"))(), a),
}


@pytest.mark.parametrize("name", FLOWS)
def test_dependent_outputs_are_those_that_vmap_batches(name):
    fn = FLOWS[name]
    examples = [jnp.ones(())] * 3
    make = jax.make_jaxpr(fn, axis_env=[("batch", 3)])
    jaxpr = make(*examples)
    for number in range(1, 8):
        marks = [bool(number & bit) for bit in (1, 2, 4)]
        assert depends_on(jaxpr, marks, "batch") == _differs(fn, marks), marks


PAGE = Path(__file__).parents[2] / "docs" / "how_it_works.md"
INTERNAL = re.compile(
    r"jax\._src|from jaxlib|jax\.interpreters|jax\.extend|equinox\.internal|equinox\._"
    r"|jax\.core(?! import Tracer$)|get_bind_params|\.ctx\.|source_info"
    r"|\"_trace\"|InternalFloatingPointError|xla_disable|RESOURCE_EXHAUSTED|is_high"
    r"|_max_workers|_mp_context|_getitems|_instances|node_data|\.marker is|opname"
    r"|\"while_loop\"|vmap_f",
    re.MULTILINE,
)


def test_the_page_on_internals_names_every_file_that_uses_them():
    root = PAGE.parent.parent
    files = {
        str(path.relative_to(root))
        for path in (root / "eqx_pipe").rglob("*.py")
        if INTERNAL.search(path.read_text())
    }
    named = set(re.findall(r"`(eqx_pipe/[\w/]+\.py)`", PAGE.read_text()))
    assert sorted(files - named) == []  # to be put into the page
    assert sorted(n for n in named if not (root / n).exists()) == []
