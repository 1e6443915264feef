"""What is read in the branch of a conditional before it is run."""

import jax
from jax import lax

from eqx_pipe._choose.dependence import depends_on, used_inputs
from eqx_pipe._jaxprs.table import may_loop_or_call_back


def test_what_outputs_depend_on_and_which_inputs_are_used():
    def fn(a, b, c):
        return jax.jit(lambda a, b: (a * 2, b + 1))(a, b)

    branch = jax.make_jaxpr(fn)(1.0, 2.0, 3.0)
    assert depends_on(branch, [True, False, False]) == [True, False]
    assert used_inputs(branch) == [True, True, False]
    assert not may_loop_or_call_back(branch)


def test_a_loop_inside_a_jitted_function_is_seen():
    loop = jax.make_jaxpr(
        jax.jit(lambda x: lax.while_loop(lambda v: v > 0, lambda v: v - 1, x))
    )(1.0)
    assert may_loop_or_call_back(loop)


def test_what_a_conditional_gives_depends_on_its_predicate():
    def either(p, x):
        return lax.cond(p, lambda x: (1.0, 2 * x), lambda x: (2.0, 3 * x), x)

    jaxpr = jax.make_jaxpr(either)(True, 1.0)
    # A predicate that differs makes all outputs differ, an operand only what is its.
    assert depends_on(jaxpr, [True, False], None) == [True, True]
    assert depends_on(jaxpr, [False, True], None) == [False, True]
