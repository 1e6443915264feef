"""The table of JAX's primitives, for all code that reads jaxprs.

A primitive that is not in the table may do anything: loop for a number of steps that
depends on values, call Python, or depend on its position in a batch. Primitives that
hide what they run in their parameters (`call_hi_primitive` of JAX, those that Equinox
makes by `filter_primitive`) are omitted on purpose. `tests/clients/test_jaxprs.py`
lists new primitives.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from .jaxpr import Equation, equations, open_jaxpr

Kind = Literal[
    "elementwise", "operation", "callback", "call", "scan", "while", "branches", "other"
]


class Entry(NamedTuple):
    """A primitive.

    `kind` is `"elementwise"` for operations that compilers fuse into their neighbours,
    `"operation"` for other operations on arrays, and `"callback"` for calls to Python.
    Other kinds have jaxprs, in the parameters `bodies`: `"call"` passes its inputs to
    the only one, `"branches"` all inputs but the first to one of several; `"other"`
    uses them in another way. `aside` are parameters that do not change the outputs.

    `remake(eqn, bodies, inputs)` rebuilds an equation from functions (`Body`s, see
    `evaluate.py`), and `flow(flow, eqn, marks)` returns which outputs are marked (see
    `flow.py`), for a primitive to which the rules of its kind do not apply.
    """

    kind: Kind
    bodies: tuple[str, ...] = ()
    aside: frozenset[str] = frozenset()
    remake: Callable[..., list[Any]] | None = None
    flow: Callable[..., list[bool]] | None = None


_ELEMENTWISE = """
    abs acos acosh add add_any and argmax argmin asin asinh atan atan2 atanh
    bitcast_convert_type broadcast_in_dim cbrt ceil clamp concatenate
    convert_element_type copy copy_p cos cosh div eq erf erf_inv erfc exp exp2
    expand_dims expm1 floor ge gt imag integer_pow iota is_finite le lgamma log log1p
    log2 logistic lt max min mul ne neg nextafter not one_minus_square or pad pow real
    reduce_and reduce_max reduce_min reduce_or reduce_precision reduce_prod reduce_sum
    rem reshape rev round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh slice sqrt square squeeze stop_gradient sub tan
    tanh transpose xor
"""

# Some have a jaxpr of two scalars (`reduce`, `scatter`); some belong to Equinox.
_OPERATIONS = """
    after_all all_gather all_gather_invariant all_to_all approx_top_k axis_index
    bessel_i0e bessel_i1e broadcast_to cholesky cholesky_update clz complex conj
    conv_general_dilated create_token cumlogsumexp cummax cummin cumprod cumsum
    device_put digamma dimension_size dot_general dynamic_slice dynamic_update_slice eig
    eigh empty empty2 eq_to fft from_edtype gather geqp3 geqrf hessenberg
    householder_product igamma igamma_grad_a igammac iota_2x32_shape layout_constraint
    le_to lt_to lu lu_pivots_to_permutation maybe_set mesh_cast mulhi name nonbatchable
    nondifferentiable_backward nontraceable optimization_barrier ormqr pbroadcast pcast
    philox2x32 philox4x32 platform_index pmax pmin polygamma polynomial population_count
    ppermute preduced psum psum2 psum_invariant pvary qr ragged_all_to_all
    ragged_dot_general random_bits random_clone random_fold_in random_gamma random_seed
    random_split random_unwrap random_wrap reduce reduce_scatter reduce_window
    reduce_window_max reduce_window_min reduce_window_sum reduce_xor reduced_vary_cast
    regularized_incomplete_beta reshard rng_bit_generator rng_uniform scaled_dot scatter
    scatter-add scatter-max scatter-min scatter-mul scatter-sub schur
    select_and_gather_add select_and_scatter select_and_scatter_add select_if_vmap
    sharding_constraint sort split stack svd symmetric_product threefry2x32 threefry4x32
    tie tile to_edtype top_k triangular_solve tridiagonal tridiagonal_solve
    unreduced_psum unstack unvmap_all unvmap_any unvmap_max zeta
"""

# `equinox.error_if` is a `pure_callback` in a branch of a `cond`.
_CALLBACKS = "debug_callback debug_print io_callback pure_callback"

TABLE: dict[str, Entry] = {
    **{name: Entry("elementwise") for name in _ELEMENTWISE.split()},
    **{name: Entry("operation") for name in _OPERATIONS.split()},
    **{name: Entry("callback") for name in _CALLBACKS.split()},
    # Differentiation rules do not matter, since a sweep does not differentiate.
    "jit": Entry("call", ("jaxpr",), frozenset(["name", "ctx_mesh"])),
    "custom_jvp_call": Entry("call", ("call_jaxpr",), frozenset(["jvp_jaxpr_fun"])),
    "custom_vjp_call": Entry(
        "call", ("call_jaxpr",), frozenset(["fwd_jaxpr_thunk", "bwd", "out_trees"])
    ),
    "closed_call": Entry("call", ("call_jaxpr",)),
    "eval_jaxpr": Entry("call", ("call_jaxpr",)),  # the same since JAX 0.12
    "scan": Entry("scan", ("jaxpr",)),
    "while": Entry("while", ("cond_jaxpr", "body_jaxpr")),
    "cond": Entry("branches", ("branches",)),
    # Their jaxprs run elsewhere (on a part of a mesh), or on other inputs.
    "composite": Entry("other", ("jaxpr",)),
    "custom_linear_solve": Entry("other", ("jaxprs",)),
    "custom_vmap_call": Entry("other", ("call",)),
    "linear_call": Entry("other", ("callee", "transpose")),
    "shard_map": Entry("other", ("jaxpr",)),
}
"""The entries by the names of primitives."""


def register(name: str, entry: Entry) -> None:
    """Add a primitive, in the file that creates it or implements its rule."""
    TABLE[name] = entry


def entry(eqn: Equation) -> Entry | None:
    """Return the entry of an equation's primitive, `None` if it is unknown."""
    return TABLE.get(eqn.primitive.name)


def kind(eqn: Equation) -> Kind | None:
    """Return the kind of an equation's primitive, `None` if it is unknown."""
    known = entry(eqn)
    return None if known is None else known.kind


def may_loop_or_call_back(jaxpr: Any) -> bool:
    """Return whether a jaxpr may call Python, or have loops whose length is data.

    Its inputs then have effects besides its outputs: it takes longer, or raises
    (`equinox.error_if`).
    """
    return any(kind(eqn) in (None, "while", "callback") for eqn in equations(jaxpr))


def is_elementwise(jaxpr: Any) -> bool:
    """Return whether compilers fuse a whole jaxpr into the operations around it."""
    return all(kind(eqn) in ("elementwise", "call") for eqn in equations(jaxpr))


def bodies(eqn: Equation) -> list[Any]:
    """Return the jaxprs of an equation that can be rebuilt, in a fixed order."""
    known = entry(eqn)
    if known is None or known.kind == "other" and known.remake is None:
        return []
    found = []
    for name in known.bodies:
        value = eqn.params[name]
        found += value if isinstance(value, tuple) else [value]
    return found


def num_constants(jaxpr: Any) -> int:
    """Return the number of arrays that a jaxpr and its rebuilt equations close over."""
    inner, own = open_jaxpr(jaxpr)
    return len(own) + sum(num_constants(b) for eqn in inner.eqns for b in bodies(eqn))


def scan_counts(eqn: Equation) -> tuple[int, int]:
    """Return the numbers of inputs of a scan that are constants and carries."""
    params = eqn.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # since JAX 0.12
    return len(consts), len(carry)


def while_counts(eqn: Equation) -> tuple[int, int]:
    """Return the numbers of inputs that only the condition, or only the body, reads."""
    return eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
