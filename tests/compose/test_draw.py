"""`draw`: well-formed Mermaid text with every stage, and shapes when asked for."""

import pathlib

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
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


def test_the_input_of_a_residual_goes_round_its_only_stage():
    _, arrows = read(ep.draw(ep.residual(jnp.sin)))
    assert arrows == [("n1", "n2"), ("n1", "n3"), ("n2", "n3"), ("n3", "n4")]


def test_a_notebook_shows_the_text():
    diagram = ep.draw(ep.chain(**{'<b>&"script': jnp.sin}), jnp.ones(3))
    assert str(diagram) == repr(diagram)
    assert diagram._repr_markdown_() == f"```mermaid\n{diagram}\n```\n"


def test_the_picture_of_the_page_is_of_its_pipeline():
    first, branch, head = (
        eqx.nn.Linear(*sizes, key=KEY) for sizes in ((3, 4), (4, 4), (4, 2))
    )
    body = ep.chain(first=first, norm=eqx.nn.LayerNorm(4), act=jnp.tanh)
    pipe = ep.chain(body=body, choice=ep.cond(jnp.any, branch), head=head)
    page = pathlib.Path(__file__).parents[2] / "docs" / "composing.md"
    assert f"```mermaid\n{ep.draw(pipe, jnp.ones(3))}\n```" in page.read_text()
