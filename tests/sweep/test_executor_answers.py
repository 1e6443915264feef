"""Another answer of a worker than what it was asked for is refused, never cast."""

import copy

import jax.numpy as jnp
import numpy as np
import pytest
from support.executors import Plain

import eqx_pipe as ep

pytest.importorskip("cloudpickle")
pytest.importorskip("xarray")
pytest.importorskip("zarr")


def swapped(leaf):
    """The same numbers in another dtype, or other numbers in the same bytes."""
    return lambda values, ok: ([*map(leaf, values)], ok)


def three(x):
    return jnp.stack([x, -x, 2 * x])


class Changed(Plain):
    """Another answer for one chunk, after `change` if that is a function."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def submit(self, work, packed, index, *args):
        def changed(*args):
            values, verdict, error = work(*args)
            if self.change is None:
                return None
            values, ok = self.change(values, verdict.ok)
            other = copy.copy(verdict)
            object.__setattr__(other, "ok", ok)  # unchecked, as what arrives is
            return values, other if ok is not None else None, error

        what = changed if index[0] == 4 else work
        return super().submit(what, packed, index, *args)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (swapped(np.float64), r"float64\[2, 3\], bool\[2\], where float32\[2, 3\], b"),
        (swapped(lambda x: x.view(np.int32)), r"int32\[2, 3\]"),
        (swapped(lambda x: x[:1]), r"float32\[1, 3\]"),
        (swapped(lambda x: x[..., 0]), r"float32\[2\]"),
        (swapped(lambda x: x.T.copy()), r"float32\[3, 2\]"),
        (swapped(lambda x: x.tolist()), r"list\), bool\[2\], where"),
        (lambda values, ok: ([], ok), r"bool\[2\], where float32"),
        (lambda values, ok: (values * 2, ok), r"float32\[2, 3\], float32\[2, 3\], b"),
        (lambda values, ok: (values, ok[:1]), r"bool\[1\], where"),
        (lambda values, ok: (values, ok * 1), r"int64\[2\], where"),
        (lambda values, ok: (None, None), r"\(None, None, None\) \(tuple\)"),
        (None, r"None \(NoneType\)"),
    ],
)
def test_another_answer_than_what_was_asked_for(answer, says):
    says = f"for chunk 2, the points 4 to 5, a worker answered .*{says}.*same versions"
    executor = Changed(answer)
    with pytest.raises(ep.SweepError, match=says):
        ep.sweep(three, ep.Linspace(0, 1, 8), executor=executor, batch_size=2)
    assert executor.calls.count(4) == 1


def test_nothing_is_cast_into_a_store(tmp_path):
    asked = {"space": ep.Linspace(0, 1, 8), "batch_size": 2}
    asked["store"] = tmp_path / "runs.zarr"
    with pytest.raises(ep.SweepError, match="for chunk 2.*Nothing of it is kept"):
        ep.sweep(three, executor=Changed(swapped(np.float64)), **asked)
    result = ep.SweepResult.load(asked["store"])
    assert result.ok[:4].all() and not result.ok[4:].any()
    assert ep.sweep(three, executor=Plain(), **asked).ok.all()


def test_another_state_of_a_block_is_refused_too():
    class Other(Plain):
        def submit(self, work, *args):
            def changed(*args):
                values, ok, error = work(*args)
                return [values[0].astype(np.float64), *values[1:]], ok, error

            return super().submit(changed, *args)

    asked = {"reduce": ep.reduce.Sum(), "executor": Other()}
    with pytest.raises(ep.SweepError, match=r"the points 0 to .* answered float64"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 8), **asked)
