"""The table of JAX's primitives, and how values depend on each other through them.

A primitive that is not in the table may do anything: loop for a number of steps that
depends on values, call Python, or depend on its position in a batch. Primitives that
hide what they run in their parameters (`call_hi_primitive` of JAX, those that Equinox
makes by `filter_primitive`) are omitted on purpose. `tests/clients/test_jaxprs.py`
lists new primitives.

Dependence is computed by marks, which propagate from inputs to outputs (`Flow`). For
calls, branches and loops they agree with JAX's batching rules, so `vmap` leaves an
output without a mark unbatched.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple

from .._types import AnyJaxpr, ClosedJaxpr
from .jaxpr import (
    Equation,
    axis_names,
    equations,
    interpret,
    open_jaxpr,
    sub_jaxprs,
    within,
)

Kind = Literal[
    "elementwise", "operation", "callback", "call", "scan", "while", "branches", "other"
]


class Entry(NamedTuple):
    """A primitive.

    `kind` is `"elementwise"` for operations that compilers fuse into their neighbours,
    `"operation"` for other operations on arrays, and `"callback"` for calls to Python.
    It is `None` for a primitive that is not in the table. Other kinds have jaxprs, in
    the parameters `bodies`: `"call"` passes its inputs to the only one, `"branches"`
    all inputs but the first to one of several; `"other"` uses them in another way.
    `aside` are parameters that do not change the outputs.

    `remake(eqn, bodies, inputs)` rebuilds an equation from functions (`Body`s, see
    `evaluate.py`), and `flow(flow, eqn, marks)` returns which outputs are marked (see
    `Flow`), for a primitive to which the rules of its kind do not apply.
    """

    kind: Kind | None
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


# Operations on references (`jax.new_ref`).
_ON_REFS = "addupdate empty_ref free_ref freeze get new_ref swap"


# `equinox.error_if` is a `pure_callback` in a branch of a `cond`.
_CALLBACKS = "debug_callback debug_print io_callback pure_callback"


TABLE: dict[str, Entry] = {
    **{name: Entry("elementwise") for name in _ELEMENTWISE.split()},
    **{name: Entry("operation") for name in (_OPERATIONS + _ON_REFS).split()},
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


_UNKNOWN = Entry(None)


def entry(eqn: Equation) -> Entry:
    """Return the entry of an equation's primitive."""
    return TABLE.get(eqn.primitive.name, _UNKNOWN)


def kind(eqn: Equation) -> Kind | None:
    """Return the kind of an equation's primitive, `None` if it is unknown."""
    return entry(eqn).kind


def may_loop_or_call_back(jaxpr: AnyJaxpr) -> bool:
    """Return whether a jaxpr may call Python, or have loops whose length is data.

    Its inputs then have effects besides its outputs: it takes longer, or raises
    (`equinox.error_if`).
    """
    return any(kind(eqn) in (None, "while", "callback") for eqn in equations(jaxpr))


def is_elementwise(jaxpr: AnyJaxpr) -> bool:
    """Return whether compilers fuse a whole jaxpr into the operations around it."""
    return all(kind(eqn) in ("elementwise", "call") for eqn in equations(jaxpr))


def bodies(eqn: Equation) -> list[Any]:
    """Return the jaxprs of an equation that can be rebuilt, in a fixed order."""
    primitive = entry(eqn)
    if primitive.kind == "other" and primitive.remake is None:
        return []
    jaxprs = []
    for name in primitive.bodies:
        value = eqn.params[name]
        jaxprs += value if isinstance(value, tuple) else [value]
    return jaxprs


def num_constants(jaxpr: AnyJaxpr) -> int:
    """Return the number of arrays that a jaxpr and its rebuilt equations close over."""
    inner, arrays = open_jaxpr(jaxpr)
    return len(arrays) + sum(num_constants(b) for e in inner.eqns for b in bodies(e))


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


# Collectives whose output is the same everywhere along the axis, and primitives whose
# output differs along it even for equal operands.
_ALIKE = ("psum", "psum2", "psum_invariant", "pmax", "pmin", "all_gather")


_UNLIKE = ("axis_index", "ppermute", "all_to_all", "reduce_scatter")


class Flow:
    """The rules. A subclass may refine some equations, or record what it visits."""

    def run(self, jaxpr: AnyJaxpr, marks: Sequence[bool]) -> list[bool]:
        """Return which outputs of a jaxpr are marked, for marks of its inputs."""
        inner, closed_over = open_jaxpr(jaxpr)
        # An open jaxpr (before JAX 0.12, in `linear_solve` of lineax) does not contain
        # its constants, which may depend on anything.
        consts = [not closed_over] * len(inner.constvars)
        return interpret(jaxpr, marks, self.equation, lambda _: False, consts)

    def equation(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Return which outputs of an equation are marked."""
        # JAX batches every new reference, since it may be written to later.
        marked = any(marks) or eqn.primitive.name in ("new_ref", "empty_ref")
        return self.through(eqn, marks) if marked else [False] * len(eqn.outvars)

    def silent(self) -> "Flow":
        """Return the same rules without records, for preliminary passes."""
        return self

    def inside(self, eqn: Equation, waits: bool = False) -> "Flow":
        """Return the rules for the jaxprs of an equation.

        `waits` if it is a loop whose condition is marked.
        """
        return self

    def through(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Return which outputs of an equation are marked, from its jaxprs."""
        flow = entry(eqn).flow
        if flow is not None:
            return flow(self, eqn, marks)
        match kind(eqn):
            case "call":
                return self.inside(eqn).run(next(sub_jaxprs(eqn)), marks)
            case "branches":
                return self.branches(eqn, marks)
            case "scan":
                return self.scan(eqn, marks)
            case "while":
                return self.while_loop(eqn, marks)
        return self.opaque(eqn)

    def opaque(self, eqn: Equation) -> list[bool]:
        """Mark all outputs; visit the jaxprs inside with all inputs marked."""
        flow = self.inside(eqn)
        for jaxpr in sub_jaxprs(eqn):
            flow.run(jaxpr, [True] * len(open_jaxpr(jaxpr)[0].invars))
        return [True] * len(eqn.outvars)

    def branches(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Mark the outputs of any branch; all, if the index is marked."""
        flow = self.inside(eqn)
        by_branch = [flow.run(branch, marks[1:]) for branch in eqn.params["branches"]]
        return [marks[0] or any(column) for column in zip(*by_branch, strict=True)]

    def scan(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Mark the final carry and the stacked outputs."""
        body, (consts, carried) = eqn.params["jaxpr"], scan_counts(eqn)
        marks = self.carry(body, marks, consts, carried)
        outputs = self.inside(eqn).run(body, marks)
        return [*marks[consts : consts + carried], *outputs[carried:]]

    def while_loop(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Mark the carry: all of it if the condition is marked, which selects it."""
        cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
        of_cond, of_body = while_counts(eqn)
        first, rest = marks[:of_cond], marks[of_cond:]
        rest = self.carry(body, rest, of_body, len(eqn.outvars))
        # As `_while_loop_batching_rule` in jax/_src/lax/control_flow/loops.py: under
        # `vmap` a loop runs in all lanes, and keeps the carries of finished ones.
        waits = self.silent().run(cond, [*first, *rest[of_body:]])[0]
        carry = [waits or mark for mark in rest[of_body:]]
        # Run once more with the final marks, for a subclass that records its visits.
        flow = self.inside(eqn, waits)
        flow.run(cond, [*first, *carry])
        flow.run(body, [*rest[:of_body], *carry])
        return carry

    def carry(
        self, body: AnyJaxpr, marks: Sequence[bool], consts: int, carried: int
    ) -> list[bool]:
        """Return the marks of a loop's inputs after all iterations."""
        marks, flow = list(marks), self.silent()
        while True:  # each pass marks one more carry, or is the last
            before, carry = marks, slice(consts, consts + carried)
            outputs = flow.run(body, marks)[:carried]
            joined = [a or b for a, b in zip(marks[carry], outputs, strict=True)]
            marks = [*marks[:consts], *joined, *marks[consts + carried :]]
            if marks == before:
                return marks


def depends_on(
    branch: ClosedJaxpr, inputs: Sequence[bool], axis_name: Hashable = None
) -> list[bool]:
    """Return for each output of a jaxpr whether it may depend on the marked inputs.

    If these are batched or split over the axis `axis_name`, a sum over the axis by a
    collective does not depend on the example or device, and `axis_index` does.

    Values that do not depend on a batched input must not become batched: a transposed
    weight that is saved for the backward pass would be copied for each example.
    """
    return _Dependence(axis_name).run(branch, inputs)


class _Dependence(Flow):
    def __init__(self, axis_name: Hashable):
        self.axis_name = axis_name

    def equation(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        if self.axis_name is not None:
            # A sum over groups differs from group to group.
            whole = eqn.params.get("axis_index_groups") is None
            if whole and eqn.primitive.name in _ALIKE and self.axis_name in _axes(eqn):
                return [False] * len(eqn.outvars)
            # These have no marked operand, but differ between examples.
            if not any(marks) and any(map(self.asks_for_position, within(eqn))):
                return self.through(eqn, marks)
        return super().equation(eqn, marks)

    def asks_for_position(self, eqn: Equation) -> bool:
        """Return whether an equation reads the example's position, or may do so."""
        if kind(eqn) is None:
            return self.axis_name in axis_names(eqn)
        return eqn.primitive.name in _UNLIKE and self.axis_name in _axes(eqn)


def _axes(eqn: Equation) -> tuple[Any, ...]:
    """Return the named axes of a collective."""
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return axes if isinstance(axes, tuple) else (axes,)
