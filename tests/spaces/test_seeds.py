"""Replicates: which draws are the same at two points, by every road to a key."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe as ep

KEY = jr.key(4)


def noisy(p, key):
    return p["a"] + jr.normal(key)


def space(seeds, **more):
    return ep.Space({"a": ep.Linspace(0, 1, 3), "seed": seeds, **more})


def test_common_draws_are_those_of_the_replicate():
    swept = space(ep.Seeds(4))
    noise = ep.sweep(noisy, swept, key=KEY).grid() - np.linspace(0, 1, 3)[:, None]
    alone = [jr.normal(jr.fold_in(KEY, i)) for i in range(4)]
    np.testing.assert_allclose(noise, np.tile(alone, (3, 1)), atol=1e-6)
    some = [7, 1, 10]
    part = ep.sweep(noisy, swept[some], key=KEY).values
    np.testing.assert_allclose(
        part, ep.sweep(noisy, swept, key=KEY).values[some], rtol=1e-6
    )
    total = ep.sweep(noisy, swept, key=KEY, reduce=ep.reduce.Mean()).values
    np.testing.assert_allclose(total, 0.5 + np.mean(alone), rtol=1e-5)


def keys(swept):
    return [tuple(jr.key_data(swept.point_key(i, key=KEY)).tolist()) for i in range(6)]


def test_which_points_share_a_key():
    assert len(set(keys(space(ep.Seeds(2))))) == 2
    assert len(set(keys(space(ep.Seeds(2, draws="independent"))))) == 6
    assert keys(space(ep.Seeds(2, draws="independent"))) == keys(
        space(ep.Values([0, 1]))
    )
    assert len(set(keys(space(ep.Mapped(jnp.negative, ep.Seeds(2)))))) == 2
    both = space(ep.Seeds(2), other=ep.Seeds(3, draws="independent"))
    assert len(set(keys(both))) == 6 and keys(both) == keys(both[6:])


def test_more_replicates_change_no_draw():
    few, many = (
        [jr.key_data(space(ep.Seeds(n)).point_key(i, key=KEY)) for i in range(n)]
        for n in (2, 5)
    )
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), few, many[:2]))


def test_values_are_numbers_of_replicates():
    frame = space(ep.Seeds(2)).to_pandas()
    assert frame["seed"].tolist() == [0, 1] * 3


def test_the_best_point_is_printed_by_its_coordinates():
    tree = {
        "a": ep.Values([0.25, 1.0]),
        "index": ep.Static(["x"]),
        "w": ep.Values(np.zeros((2, 9))),
        "fixed": np.ones(1000),
    }
    with jax.disable_jit():
        best = ep.sweep(lambda p: p["a"], ep.Space(tree)).best()
    assert repr(best) == "Best(index=0, value=0.25, a=0.25, index=x, w=float32[9])"
    assert best.coordinates["a"] == 0.25
