"""`draw`: well-formed Mermaid text with every stage, and shapes when asked for."""

import inspect

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from support.pictures import KEY, linear, read, stages

import eqx_pipe as ep


@given(st.sampled_from(sorted(stages)), st.sampled_from(sorted(stages)))
def test_well_formed_and_connected(first, second):
    diagram = ep.draw(
        ep.chain(stages[first])
        if first == second
        else ep.chain(one=stages[first], two=stages[second])
    )
    _, arrows = read(diagram)
    reached = {"n1"}
    for start, end in arrows:  # written in order, so one pass is enough
        assert start in reached
        reached.add(end)
    last = str(diagram).splitlines()[-2].split("[")[0].strip("( ")
    assert "output" in str(diagram).splitlines()[-2] and last in reached


def test_shapes_on_the_arrows():
    pipe = ep.chain(
        head=linear(KEY),
        noise=eqx.nn.Dropout(),
        deep=ep.repeat(linear, 3, key=KEY),
        ends=ep.graph(
            {"a": jnp.sum, "b": jnp.isnan}, {"a": [], "b": []}, {"s": "a", "n": "b"}
        ),
    )
    text = str(ep.draw(pipe, jnp.ones(3)))
    assert text == str(ep.draw(pipe, jax.ShapeDtypeStruct((3,), jnp.float32)))
    read(text)
    assert 'n1 -->|"float32[3]"| n2' in text
    assert '-->|"s<br/>float32[]"|' in text and '-->|"n<br/>bool[3]"|' in text
    assert '-->|"n: bool[3]<br/>s: float32[]"|' in text
    assert "float32[" not in str(ep.draw(pipe))
    for stage in (linear(KEY), jnp.sin, eqx.nn.Dropout()):
        assert '"float32[3]"' in str(ep.draw(stage, jnp.ones(3)))
    many = str(ep.draw(eqx.nn.Identity(), {f"k{i}": i for i in range(6)}))
    assert "... 2 more" in many


def test_a_graph_shows_its_edges():
    pipe = ep.graph(
        {"p": jnp.sin, "q": jnp.cos, "both": lambda a, b: a + b},
        {"p": [], "q": "p", "both": ["p", "q"]},
        "both",
    )
    _, arrows = read(ep.draw(pipe))
    p, q, both = "n2", "n3", "n4"
    assert arrows == [("n1", p), (p, q), (p, both), (q, both), (both, "n5")]


def test_what_decides_and_what_joins():
    text = str(ep.draw(stages["cond"]))
    assert '{"pred: any"}' in text and '|"then"|' in text and '|"otherwise"|' in text
    text = str(ep.draw(stages["switch"]))
    assert '{"selector: argmax"}' in text and '|"1"|' in text
    text = str(ep.draw(stages["gated"]))
    assert '{"gates.0: any"}' in text and text.count('|"open"|') == 2
    assert '{{"dict"}}' in str(ep.draw(stages["parallel"], jnp.ones(3)))
    assert '["merge: stack"]' in str(ep.draw(stages["stack"], jnp.ones(3)))
    text = str(ep.draw(stages["merge"], jnp.ones(3)))
    assert '{{"tuple"}}' in text and '["merge: chain"]' in text
    text = str(ep.draw(stages["mixture"], jnp.ones(3)))
    assert '["weights: Linear<br/>8 parameters"]' in text
    assert '|"weights<br/>float32[2]"|' in text


def test_labels_are_escaped():
    name = 'a"b<c>|`#;&\n[x]{y}'
    text = str(ep.draw(ep.chain(**{name: len}), {name: jnp.ones(2)}))
    read(text)
    assert "1 (int)" in text
    assert "a#34;b#60;c#62;|#96;#35;;#38;<br/>[x]{y}: len" in text


def test_frames_round_what_is_nested():
    text = str(ep.draw(ep.chain(deep=ep.repeat(linear, 3, key=KEY))))
    assert '["deep: repeat n=3, 36 parameters"]' in text
    assert '["0: Linear<br/>12 parameters"]' in text
    text = str(ep.draw(eqx.nn.Sequential([ep.chain(jnp.sin), eqx.nn.Dropout()])))
    assert '["layers.0: chain"]' in text and '["layers.1: Dropout"]' in text
    assert '["two: chain"]' in str(ep.draw(ep.chain(one=jnp.sin, two=ep.chain())))


def test_stateful_pipelines():
    class Counter(eqx.nn.StatefulLayer):
        index: eqx.nn.StateIndex

        def __init__(self):
            self.index = eqx.nn.StateIndex(jnp.zeros((), jnp.float32))

        def __call__(self, x, state, *, key=None):
            return x, state.set(self.index, state.get(self.index) + 1)

    raw = ep.chain(a=Counter())
    assert '"float32[2]"' in str(ep.draw(raw, jnp.ones(2)))
    pipe, state = eqx.nn.make_with_state(lambda: raw)()
    assert ep.draw(pipe, jnp.ones(2), state=state) == ep.draw(raw, jnp.ones(2))
    assert "Counter" in str(ep.draw(pipe))
    pipe(jnp.ones(2), state)  # the state was not used up
    with pytest.raises(ValueError, match="draw\\(pipe, x, state=state\\)"):
        ep.draw(pipe, jnp.ones(2))


def test_more_stages_in_a_row_than_are_looked_at_are_one_box():
    pipe = ep.chain(*[s for _ in range(20) for s in (linear(KEY), jnp.tanh)])
    names, arrows = read(ep.draw(pipe, jnp.ones(3), fold=5))
    assert len(names) == 7 and len(arrows) == 6
    text = str(ep.draw(pipe, jnp.ones(3), fold=5))
    assert "2 ... 37<br/>36 stages: 18 Linear, 18 tanh<br/>216 parameters" in text
    assert text.count("float32[3]") == 6
    assert len(read(ep.draw(pipe, fold=None))[0]) == 42
    wide = ep.gated(*[jnp.sin] * 9, gates=[jnp.any] * 9)
    text = str(ep.draw(wide, fold=4))
    assert '|"those open"|' in text and "6 stages: 6 sin" in text
    assert text.count("gates.") == 3
    few = ep.chain(*[jnp.sin] * 16)
    assert ep.draw(few) == ep.draw(few, fold=None)


def test_bad_input():
    with pytest.raises(ValueError, match="integer of at least 3"):
        ep.draw(len, fold=2)
    for wrong in (3, eqx.nn.Linear):
        with pytest.raises(TypeError, match="eqx_pipe.draw.*`pipe`"):
            inspect.unwrap(ep.draw)(wrong)
    with pytest.raises(TypeError) as caught:
        ep.draw(ep.chain(a=linear(KEY)), jnp.ones(5))
    assert any("`a`" in note for note in caught.value.__notes__)


def test_the_input_of_a_residual_goes_round_its_only_stage():
    _, arrows = read(ep.draw(ep.residual(jnp.sin)))
    assert arrows == [("n1", "n2"), ("n1", "n3"), ("n2", "n3"), ("n3", "n4")]
