"""What cannot be drawn, and what the message says to do."""

import sys

import jax
import pytest
from support.plots import A, B, closed, matplotlib, plt, total

import eqx_pipe as ep

__all__ = ["closed"]  # a fixture


def test_many_dims_say_what_to_select():
    space = {name: ep.Linspace(0, 1, 2) for name in "abcd"}
    result = ep.sweep(total, space)
    with pytest.raises(ValueError, match=r"4 dims.*sel=\{'d': 0\}.*`hue=` for"):
        result.plot()
    with pytest.raises(ValueError, match="4 dims.*`row=`"):
        result.plot(x="a", y="b")
    assert result.plot(row="c", col="d").shape == (2, 2)
    assert result.plot(x="b", sel={"c": 0, "d": 1}).get_xlabel() == "b"
    with pytest.raises(ValueError, match="one value.*1.*Leave a dim out"):
        result.plot(sel={"a": 0, "b": 0, "c": 0, "d": 1})
    single = ep.sweep(total, {**space, "b": ep.Values([3.0]), "c": ep.Values([1])})
    ax = single.plot()  # dims of length 1 are selected by themselves
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == (
        "a", "d", "b = 3, c = 1",
    )  # fmt: skip


NORM = matplotlib.colors.LogNorm()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"sel": {"z": 1}}, ValueError, "`sel` names 'z'.*Known names: `a`, `b`"),
        ({"sel": ["a"]}, TypeError, "Give a dict"),
        ({"x": "z"}, ValueError, "`x` is 'z'.*Known names: `a`, `b`"),
        ({"x": "a", "y": "a"}, ValueError, "`x` and `y` are both `a`.*different"),
        ({"hue": "a", "col": "a"}, ValueError, "both along the dim `a`.*different"),
        ({"hue": "a", "y": "b"}, ValueError, "`hue` and `y`.*Leave one out"),
        ({"hue": "a", "row": "b"}, ValueError, "no dim is left for the x axis.*Leave"),
        ({"dims": ("a", "b")}, TypeError, "no keyword `dims`.*`x=`, `y=`, `hue=`"),
        ({"log": True}, TypeError, 'no keyword `log`.*norm="log"'),
        ({"figsize": (3, 3)}, TypeError, "no keyword `figsize`.*ax=plt.subplots"),
        ({"cmpa": "magma"}, TypeError, "Did you mean `cmap`.*`hue`.*`vmax`"),
        ({"norm": NORM, "vmin": 1}, ValueError, r"`norm` is given.*LogNorm\(vmin="),
        ({"sel": {"a": 0}, "vmin": 1}, ValueError, "`vmin` is given.*set_ylim"),
        ({"ax": 3}, TypeError, "`ax` is 3.*plt.subplots"),
    ],
)
def test_what_cannot_be_drawn(unchecked, options, error, says):
    with pytest.raises(error, match=says):
        ep.sweep(total, {"a": A, "b": B}).plot(**options)


def test_more_that_cannot_be_drawn(monkeypatch):
    three = ep.sweep(total, {"a": A, "b": B, "c": ep.Linspace(0, 1, 40)})
    with pytest.raises(ValueError, match="40 positions.*at most 36"):
        three.plot()
    with pytest.raises(ValueError, match="several panels.*sel="):
        three.plot(ax=plt.subplots()[1])
    with pytest.raises(TypeError, match="reduced them"):
        ep.sweep(total, {"a": A}, reduce=ep.reduce.Mean()).plot()
    with pytest.raises(ValueError, match="complex64.*absolute value"):
        ep.sweep(lambda p: jax.lax.complex(p["a"], p["a"]), {"a": A}).plot()
    wide = ep.Space({str(i): ep.Values([1, 3, 2]) for i in range(3)}, "zip")
    with pytest.raises(ValueError, match="3 coordinates.*`x='0'`, `y='1'`"):
        ep.sweep(total, wide).plot()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"matplotlib.*eqx_pipe\[sweep\]"):
        ep.sweep(total, {"a": A}).plot()
