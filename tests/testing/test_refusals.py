"""What a function refuses, and what it raises by mistake."""

import equinox as eqx
import hypothesis as hp
import jax.numpy as jnp
import optax
import pytest
from jaxtyping import Array, Float

import eqx_pipe.testing as ept
from eqx_pipe.testing._annotations.refusals import is_own_refusal

few = hp.settings(
    max_examples=3,
    database=None,
    report_multiple_bugs=False,
    phases=[hp.Phase.generate],  # shrinking is hypothesis's, and takes long
)


def passes(fn, **options):
    few(ept.given_typed(fn, **options))()


def cropped(x: Array, size: int) -> Float[Array, " {size}"]:
    if x.ndim != 1 or size > len(x):
        raise ValueError("too large")
    return x[:size]


def test_what_a_function_refuses_is_thrown_away_and_told():
    with pytest.warns(UserWarning, match="`cropped` refuses .* ValueError: too large"):
        passes(cropped, shapes="find")
    ept.laws(cropped, shapes={"x": "n"}, refusals=(ValueError,))("struct")
    with pytest.raises(ValueError, match="too large"):
        passes(cropped, shapes={"x": "n"}, refusals=())


def test_a_function_that_refuses_all_does_not_pass():
    with pytest.raises(ValueError, match="too large") as caught:
        passes(cropped, shapes={"x": "a b"}, refusals=ValueError)
    assert any(
        "examples were refused by `cropped`" in n for n in caught.value.__notes__
    )


def by_equinox(x: Float[Array, " n"]):
    return eqx.error_if(x, x.sum() < 9, "too small")


def by_chex(x: Float[Array, " n"]):
    pytest.importorskip("chex").assert_rank(x, 2)


def by_assert(x: Float[Array, " n"]):
    assert x.ndim == 2


def by_jax(x: Float[Array, " n"]):
    return x @ jnp.ones((77, 78))


def by_another(x: Float[Array, " n"]):
    optax.warmup_cosine_decay_schedule(0.0, 1.0, 0, -len(x))


def by_mistake(x: Float[Array, " n"]):
    return {}[len(x)]


@pytest.mark.parametrize(
    ("fn", "refuses"),
    [
        (by_equinox, True),
        (eqx.filter_jit(by_equinox), True),
        (by_chex, True),
        (by_assert, False),
        (by_jax, False),
        (by_another, False),
        (by_mistake, False),
    ],
)
def test_a_refusal_is_told_from_a_fault(fn, refuses):
    with pytest.raises(Exception) as caught:
        fn(jnp.zeros(3))
    assert is_own_refusal(fn, caught.value) == refuses


def test_what_a_function_raises_is_told_once():
    many = hp.settings(few, max_examples=20)
    options = {"shapes": {"x": "n"}, "refusals": ()}
    suite = many(ept.laws(cropped, **options))
    suite(law="struct")
    for law, test in (
        ("returns", suite),
        ("struct", many(ept.laws(cropped, skip=("returns",), **options))),
    ):
        with pytest.raises(ValueError, match="too large"):
            test(law=law)
