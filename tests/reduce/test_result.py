"""The errors, the text and the programs of reduced sweeps."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

SPACE = ep.Linspace(0, 1, 20)


def fn(x):
    return {
        "loss": x,
        "fit": {"z": jax.lax.complex(x, x), "v": jnp.ones(3)},
        "key": jr.key(0),
    }


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: ep.reduce.Mean, TypeError, r"class 'eqx_pipe.*Mean\(\.\.\.\)"),
        (lambda: {"a": 3}, TypeError, r"at `\.a` 3 \(int\).*Mean\(\)"),
        (lambda: "mean", TypeError, "'mean' .*not a reducer"),
        (lambda: {}, TypeError, "contains no reducer"),
        (lambda: ep.reduce.Mean("los"), ValueError, "Mean.*Did you mean `loss`"),
        (
            lambda: ep.reduce.ArgMin(),
            ValueError,
            "one real scalar.*Known names: `fit.v`",
        ),
        (
            lambda: ep.reduce.ArgMax("fit.v"),
            ValueError,
            r"float32\[3\].*one real scalar",
        ),
        (lambda: ep.reduce.TopK(2, "key"), TypeError, "TopK.*no arithmetic"),
        (lambda: ep.reduce.ArgMin("fit.z"), TypeError, "complex64.*no order.*`by="),
        (lambda: ep.reduce.Min(), TypeError, r"at `\.fit\.z`.*no order"),
        (lambda: ep.reduce.Sum(), TypeError, r"at `\.key`.*no arithmetic"),
        (lambda: ep.reduce.Mean(by=3), TypeError, "`by` is 3"),
    ],
)
def test_wrong_reducers(make, kind, text, unchecked):
    with pytest.raises(kind, match=text):
        ep.sweep(fn, SPACE, reduce=make())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ep.reduce.TopK(0), "`k` is 0.*at least 1"),
        (lambda: ep.reduce.TopK(1, mode="top"), "mode.*Known names: `max`, `min`"),
        (lambda: ep.reduce.Histogram([0, 2, 2]), "increasing finite edges"),
        (lambda: ep.reduce.Histogram([0, np.nan]), "increasing finite edges"),
        (lambda: ep.reduce.Histogram(10), "linspace"),
    ],
)
def test_wrong_settings(make, text, unchecked):
    with pytest.raises(ValueError, match=text):
        make()


def test_a_state_that_changes_its_shape_raises():
    grows = ep.reduce.Reducer(
        lambda s: jnp.zeros(1),
        lambda state, x: jnp.concatenate([state, x[None]]),
        lambda a, b: a,
        lambda state: state,
    )
    with pytest.raises(ep.StructureError, match=r"float32\[1\] against float32\[2\]"):
        ep.sweep(lambda x: x, SPACE, reduce=grows)


def test_methods_that_need_all_values_raise():
    result = ep.sweep(fn, SPACE, reduce={"mean": ep.reduce.Mean("loss")})
    for ask in (
        lambda: result[0],
        lambda: result[:3],
        lambda: list(result),
        lambda: result.grid(),
        lambda: result.best("loss"),
        lambda: result.save("r.zarr"),
        lambda: result.to_pandas(),
    ):
        with pytest.raises(TypeError, match="reduced them.*without `reduce=`"):
            ask()
    assert "reduced over 20 points" in repr(result)
    assert "mean  float32[]" in repr(result)
    assert result.ok.shape == (20,) and result.ok.all()


def test_there_is_no_communication(programs):
    result = ep.sweep(
        jnp.sin, SPACE, reduce=[ep.reduce.Mean(), ep.reduce.ArgMin()], batch_size=2
    )
    assert result.num_devices == 8
    text = programs[0][1].as_text()
    for name in ("all-reduce", "all-gather", "all-to-all", "collective-permute"):
        assert name not in text
