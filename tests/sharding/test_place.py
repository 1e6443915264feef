"""shard: placing arrays changes where they are, not what."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from support.helpers import arrays_by_path, assert_agree

import eqx_pipe as ep

KINDS = (AxisType.Auto, AxisType.Explicit)


def make(kind=AxisType.Auto, shape=(4, 2)):
    return jax.make_mesh(shape, ("data", "model"), axis_types=(kind,) * 2)


def host(tree):
    return jtu.tree_map(lambda a: np.asarray(a) if eqx.is_array(a) else a, tree)


@pytest.fixture(params=KINDS, ids=str)
def mesh(request):
    return make(request.param)


SPECS = st.sampled_from(
    [None, P(), P("data"), P("model"), P(None, "data"), P("data", "model")]
    + [P(("data", "model")), P("model", "data")]
)


@given(SPECS, SPECS, st.sampled_from([(8, 8), (8, 16, 3)]), st.sampled_from(KINDS))
def test_values_do_not_change(one, two, shape, kind):
    x = jr.normal(jr.key(0), shape)
    tree = {
        "x": x,
        "y": (x.astype(jnp.bfloat16), np.arange(64, dtype=np.int32).reshape(8, 8)),
    }
    placed = ep.sharding.shard(tree, make(kind), {"x": one, "y": two})
    again = ep.sharding.shard(placed, make(kind), {"x": two, "y": one})
    for tree_ in (placed, again):
        assert_agree(host(tree_), host(tree))
    assert placed["x"].sharding.spec == (P() if one is None else one)


def test_what_is_no_array_passes_untouched(mesh):
    tree = {
        "text": "abc",
        "none": None,
        "number": 3,
        "words": np.array(["a", "b"]),
        "scalar": jnp.array(2.0),
        "short": jnp.ones(8),
        "long": np.ones((8, 4, 3), np.float32),
        "keys": jr.split(jr.key(0), 8),
        "fn": jnp.tanh,
    }
    placed = ep.sharding.shard(tree, mesh, P("data", "model"))
    for name in ("text", "none", "number", "words", "fn"):
        assert placed[name] is tree[name]
    specs = {n: placed[n].sharding.spec for n in ("scalar", "short", "long", "keys")}
    assert specs["scalar"] == P() and specs["short"] == specs["keys"] == P("data")
    assert specs["long"] == P("data", "model")
    # Where each leaf has its own spec, that of a scalar is not read either.
    each = dict.fromkeys(tree, P("data"))
    assert ep.sharding.shard(tree, mesh, each)["scalar"].sharding.spec == P()


def by_rank(leaf):
    return P("model") if leaf.ndim == 2 else None


def test_models_by_path_and_by_tree(mesh, getkey):
    mlp = eqx.nn.MLP(4, 8, 8, 2, key=getkey())
    by_path = {"**.weight": P("model")}
    by_tree = jax.tree.map(by_rank, eqx.filter(mlp, eqx.is_array))
    for specs in (by_path, by_tree):
        placed = ep.sharding.shard(mlp, mesh, specs)
        assert placed.layers[1].weight.sharding.spec == P("model")
        assert placed.layers[1].bias.sharding.spec == P()
        assert placed.activation is mlp.activation
    y = eqx.filter_jit(ep.sharding.shard(mlp, make(), by_tree))(jnp.ones(4))
    assert np.allclose(np.asarray(y), mlp(jnp.ones(4)), atol=1e-6)


def test_rules(mesh):
    rules = {"batch": "data", "hidden": "model"}
    x = {"x": jnp.ones((8, 4)), "y": jnp.ones(8)}
    placed = ep.sharding.shard(x, mesh, P("batch", "hidden"), rules)
    assert placed["x"].sharding.spec == P("data", "model")
    assert placed["y"].sharding.spec == P("data")
    with pytest.raises(ValueError, match="(?s)`x`: no rule is left for `data`.*add"):
        ep.sharding.shard(x, mesh, P("data"), ep.sharding.AxisRules(rules))


def test_inside_jit_and_grad(mesh):
    x = jnp.arange(32.0).reshape(8, 4)

    def f(x):
        y = ep.sharding.shard({"x": jnp.sin(x), "n": 1}, mesh, P("data", "model"))
        return jnp.sum(y["x"] ** 2)

    def made(x):
        return ep.sharding.shard(2 * x, mesh, P("data", "model"))

    plain = jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2))(x)
    assert np.allclose(jax.jit(jax.grad(f))(x), plain, atol=1e-5)
    assert jax.jit(made)(x).sharding.spec == P("data", "model")


def test_all_misfits_in_one_error(mesh):
    tree = {"a": jnp.ones((7, 3)), "b": [jnp.ones((4, 8))], "c": jnp.ones(8)}
    tree["d"] = jnp.ones((2, 2))
    specs = {"a": P("data"), "b": P("model", "model"), "c": P("data", "model")}
    with pytest.raises(ValueError) as error:
        ep.sharding.shard(tree, mesh, specs | {"d": P("modl")})
    text = str(error.value)
    assert "`a`: axis 0 has size 7" in text and "`data` of size 4" in text
    assert "the nearest that fits: 4 or 8" in text
    assert "`b.0`: the mesh axis `model` stands twice" in text
    assert "`c`:" in text and "2 entries, but float32[8] has 1 axes" in text
    assert "`d`: the mesh has no axis `modl`. Did you mean `model`?" in text
    assert "{'data': 4, 'model': 2}" in text and "`jnp.pad` pads" in text
    with pytest.raises(ValueError, match="nearest that fits: 8"):
        ep.sharding.shard(jnp.ones(3), mesh, P(("data", "model")))


@pytest.mark.parametrize("below", [{"y": [P("data")]}, [None]])
def test_specs_that_are_no_prefix_say_where(below):
    tree = {"x": jnp.ones(8), "q": {"y": [jnp.ones((300, 300))] * 3}}
    where = r"\['q'\]" + r"\['y'\]" * isinstance(below, dict)
    with pytest.raises(ep.StructureError, match=f"(?s)not a prefix.*{where}"):
        ep.sharding.shard(tree, make(), {"x": None, "q": below})


def stack():
    key = jr.key(0)
    layer = lambda key: ep.chain(mlp=eqx.nn.Linear(8, 8, key=key), act=jnp.tanh)  # noqa: E731
    return ep.chain(
        body=eqx.nn.Linear(8, 8, key=key),
        blocks=ep.repeat(layer, 2, key=key),
        head=eqx.nn.Linear(8, 4, key=key),
    )


PATTERNS = {"head.weight": P("model"), "blocks.*.mlp.weight": P(None, "model")}


def test_paths_are_those_of_pipelines_everywhere(mesh):
    pipe = stack()
    placed = ep.sharding.shard(pipe, mesh, PATTERNS)
    made = ep.sharding.init_sharded(lambda key: stack(), jr.key(0), mesh, PATTERNS)
    gradients = ep.sharding.shard((eqx.filter(pipe, eqx.is_array), 1), mesh, P())
    assert "0.head.weight" in arrays_by_path(gradients)
    for tree in (placed, made):
        specs = {path: x.sharding.spec for path, x in arrays_by_path(tree).items()}
        assert {path: spec for path, spec in specs.items() if any(spec)} == PATTERNS
        assert tree["body"].bias.sharding.num_devices == 8
    with pytest.raises(ValueError, match="(?s)`head.weight`: axis 0 has size 4.*8"):
        ep.sharding.shard(pipe, mesh, {"head": P(("data", "model"))})


@pytest.mark.parametrize(
    ("specs", "wrong"),
    [
        (
            {"head.wieght": P("model")},
            "`head.wieght` matches no array. Did you mean `head.weight`",
        ),
        ({"stages.1.weight": P("model")}, "matches no array"),
        (
            {"head": P("model"), "**.weight": P()},
            "(?s)disagree about `head.weight`.*`head` for .*: P.*`.*weight` for .*: P",
        ),
        (
            {"blocks.0.mlp.weight": P("model")},
            "(?s)disagree about `blocks.*.mlp.weight`.*no pattern for "
            "`blocks.1.mlp.weight`: P",
        ),
        ({"head.bias": P(None, "model")}, "2 entries, but float32.4. has 1 axes"),
    ],
)
def test_patterns_that_do_not_fit(specs, wrong):
    with pytest.raises(ValueError, match=wrong):
        ep.sharding.shard(stack(), make(), specs)


def test_a_mapping_is_a_prefix_if_it_fits_and_a_pattern_is_cut_to_the_rank():
    tree = {"a": jnp.ones((8, 8)), "b": {"w": jnp.ones((8, 8)), "c": jnp.ones(8)}}

    def place(specs):
        placed = ep.sharding.shard(tree, make(), specs)
        return jax.tree.map(lambda x: x.sharding.spec, placed)

    prefix = place({"a": P("data"), "b": P("model")})
    assert prefix["a"] == P("data") and prefix["b"]["w"] == P("model")
    patterns = place({"b": P("data", "model")})
    assert patterns["b"] == {"w": P("data", "model"), "c": P("data")}
    assert patterns["a"] == P()


def test_under_vmap_outside_jit_the_spec_is_that_of_one_example():
    x = jnp.arange(14.0).reshape(7, 2)
    got = jax.vmap(lambda z: ep.sharding.shard(2 * z, make(), P("model")))(x)
    assert np.array_equal(got, 2 * x) and got.sharding.spec == P(None, "model")
    elsewhere = jax.device_put(jnp.arange(8.0), jax.devices()[3])
    grads = jax.grad(lambda z: jnp.sum(ep.sharding.shard(z, make(), P("data")) ** 2))(
        elsewhere
    )
    assert np.array_equal(grads, 2 * elsewhere)
