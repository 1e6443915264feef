"""Designs of SALib evaluated by sweeps; records of Grain fed by a loader."""

import grain
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import SALib.analyze.sobol
import SALib.sample.sobol
import SALib.test_functions.Ishigami as ishigami

import eqx_pipe as ep

PROBLEM = {
    "num_vars": 3,
    "names": ["x1", "x2", "x3"],
    "bounds": [[-np.pi, np.pi]] * 3,
}


def formula(p):
    return (
        jnp.sin(p["x1"])
        + 7.0 * jnp.sin(p["x2"]) ** 2
        + 0.1 * p["x3"] ** 4 * jnp.sin(p["x1"])
    )


def output(p):
    return {"y": formula(p), "v": jnp.stack([p["x2"]] * 2)}


def test_sensitivities_of_a_space(unchecked):
    space = {name: ep.Linspace(-np.pi, np.pi, 2) for name in PROBLEM["names"]}
    keys = jr.key(1), jr.key(2)
    first, second = (int(jr.bits(key, dtype=jnp.uint32)) for key in keys)
    design = ep.search.sensitivity_design(space, 64, key=keys[0])
    result = ep.sweep(output, design)
    ours = ep.search.sensitivity(result, space, "y", key=keys[1])
    rows = SALib.sample.sobol.sample(PROBLEM, 64, calc_second_order=False, seed=first)
    theirs = SALib.analyze.sobol.analyze(
        PROBLEM, ishigami.evaluate(rows), calc_second_order=False, seed=second
    )
    assert ours["axis"].values.tolist() == PROBLEM["names"]
    for name in ("S1", "ST", "S1_conf", "ST_conf"):
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-3)
    curve = ep.search.sensitivity(result, space, "v")["S1"]
    assert curve.dims == ("axis", "v.0")
    np.testing.assert_allclose(curve, [[0, 0], [1, 1], [0, 0]], atol=0.2)
    with pytest.raises(ValueError, match="all of it"):
        ep.search.sensitivity(result[:-1], space, "y")
    with pytest.raises(ValueError, match="Known names: `v`, `y`"):
        ep.search.sensitivity(result, space)
    with pytest.raises(ValueError, match="a number at every point"):
        holes = ep.sweep(lambda p: jnp.log(p["x1"]), design)
        ep.search.sensitivity(holes, space)
    with pytest.raises(ValueError, match="Give 64 or 128"):
        ep.search.sensitivity_design(space, 100)
    with pytest.raises(TypeError, match="what `sweep` returns"):
        ep.search.sensitivity(result.values["y"], space)


def test_elementary_effects_of_a_space():
    space = {"rate": ep.Geomspace(1e-4, 1.0, 2), "on": ep.Values([0.0, 1.0, 2.0, 3.0])}
    design = ep.search.sensitivity_design(space, 20, method="morris", key=jr.key(1))
    result = ep.sweep(lambda p: jnp.log10(p["rate"]) + p["on"], design)
    effects = ep.search.sensitivity(result, space, method="morris")
    np.testing.assert_allclose(effects["mu_star"], [4, 3], atol=1e-3)
    assert effects["sigma"].dims == ("axis",)


def test_records_of_grain():
    records = [{"x": np.full(3, i, np.float32), "y": np.int32(i)} for i in range(10)]
    source = grain.MapDataset.source(records).map(
        lambda record: {**record, "x": record["x"] * 2}
    )
    loader = ep.data.Loader(
        source, ep.at("x", jnp.sqrt), batch_size=4, shuffle=False, drop_remainder=False
    )
    batches = list(loader.epoch(loader.init(jax.random.key(0))))
    expected = list(source.batch(4))
    assert [len(batch["y"]) for batch in batches] == [4, 4, 2]
    for ours, theirs in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(ours["y"], theirs["y"])
        np.testing.assert_allclose(ours["x"], np.sqrt(theirs["x"]), rtol=1e-6)
