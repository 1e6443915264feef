"""`refill`: what is refused, and what the message says."""

import jax.numpy as jnp
import pytest

import eqx_pipe as ep


@pytest.mark.parametrize("name", ["init", "cond", "body", "out"])
def test_what_cannot_be_called_is_an_error(name, unchecked):
    four = dict.fromkeys(("init", "cond", "body", "out"), lambda *args: args[-1])
    with pytest.raises(TypeError, match=f"`{name}` is 3 .*Give four functions"):
        ep.refill(**{**four, name: 3})


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (
            lambda c: {"i": c["i"], "name": "a"},
            "x",
        ),
        (lambda c: {**c, "x": c["i"]}, "float32.*int32"),
        (lambda c: {**c, "x": jnp.ones(2)}, r"float32\[2\]"),
    ],
)
def test_a_body_of_another_form_is_an_error(after, says):
    fn = ep.refill(
        lambda x: {"i": jnp.int32(0), "x": x, "name": "a"},
        lambda x, c: c["i"] < 3,
        lambda x, c: after(c),
        lambda x, c: c,
    )
    with pytest.raises(TypeError, match=f"(?s){says}") as error:
        fn(jnp.float32(1))
    assert "`body`, which returns what `init` starts with" in " ".join(
        error.value.__notes__
    )


def test_a_fixed_part_of_the_carry_that_changes_is_an_error():
    fn = ep.refill(
        lambda x: {"x": x, "name": "a"},
        lambda x, c: c["x"] < 3,
        lambda x, c: {**c, "name": "b"},
        lambda x, c: c,
    )
    with pytest.raises(ep.StructureError, match="at `.name`: 'a'"):
        fn(jnp.float32(1))


@pytest.mark.parametrize("found", [jnp.ones(2, bool), jnp.float32(1), 1, None])
def test_a_condition_that_is_none_is_an_error(found):
    fn = ep.refill(lambda x: x, lambda x, c: found, lambda x, c: c, lambda x, c: c)
    with pytest.raises(TypeError, match="cond_fun") as error:
        fn(jnp.float32(1))
    assert "`cond`, which returns one boolean" in " ".join(error.value.__notes__)
