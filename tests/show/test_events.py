"""Event files that TensorBoard reads: bands, the best points, hyperparameters."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import eqx_pipe as ep
from eqx_pipe._cli import main


def read(folder):
    """Return the numbers of all runs as TensorBoard's own reader has them."""
    with warnings.catch_warnings(action="ignore"):  # protobuf's, when it is imported
        multiplexer = pytest.importorskip(
            "tensorboard.backend.event_processing.event_multiplexer"
        )
        every = {"scalars": 0, "tensors": 0}
        runs = multiplexer.EventMultiplexer(size_guidance=every)
        runs.AddRunsFromDirectory(str(folder)).Reload()
    return runs


def curve(runs, run, tag):
    events = runs.Scalars(run, tag)
    return [e.step for e in events], [e.value for e in events]


def test_bands_and_the_best(tmp_path, stores, capsys):
    assert main(["tensorboard", str(stores["train"]), str(tmp_path)]) == 0
    assert "5 runs of bands and 5 of points" in capsys.readouterr().out
    runs, result = read(tmp_path), ep.TrainResult.load(stores["train"])
    for name in ("loss", "test"):
        values = result.curves.values[name]
        (right,) = result.curves.output_coords[name].values()
        for level in (5, 25, 50, 75, 95):
            steps, found = curve(runs, f"band/p{level:02}", name)
            assert steps == right.tolist()
            each = np.quantile(values, level / 100, axis=0, method="nearest")
            np.testing.assert_array_equal(found, each)
    order = np.argsort(result.latest.values["test"], kind="stable")[:5]
    names = sorted(name for name in runs.Runs() if name.startswith("best/"))
    for name, i in zip(names, order, strict=True):
        steps, found = curve(runs, name, "loss")
        np.testing.assert_array_equal(found, result.curves.values["loss"][i])
        content = runs.SummaryMetadata(name, "_hparams_/session_start_info")
        with warnings.catch_warnings(action="ignore"):
            plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
        point = plugin.HParamsPluginData.FromString(content.plugin_data.content)
        rate = point.session_start_info.hparams["rate"].number_value
        assert rate == np.float32(result.space[int(i)]["rate"])


def test_all_points_of_curves_of_a_sweep(tmp_path, stores, capsys):
    arguments = ["--all", "--by", "loss", "--mode", "max"]
    assert main(["tensorboard", str(stores["curves"]), str(tmp_path), *arguments]) == 0
    runs, result = read(tmp_path), ep.SweepResult.load(stores["curves"])
    names = sorted(name for name in runs.Runs() if name.startswith("all/"))
    assert len(names) == len(result)
    for i in (0, 17, 47):
        steps, found = curve(runs, names[i], "loss")
        assert steps == list(range(1, 31))
        np.testing.assert_array_equal(found, np.asarray(result.values["loss"][i]))


def test_stopped_trainings_have_no_numbers_afterwards(tmp_path, stores, capsys):
    assert main(["tensorboard", str(stores["halving"]), str(tmp_path), "--all"]) == 0
    runs, result = read(tmp_path), ep.TrainResult.load(stores["halving"])
    names = sorted(name for name in runs.Runs() if name.startswith("all/"))
    stopped = [i for i in np.flatnonzero(~result.active) if i not in result.errors]
    i = stopped[0]
    steps, _ = curve(runs, names[i], "loss")
    values = result.curves.values["loss"][i]
    assert len(steps) == np.isfinite(values).sum() < len(values)


def test_long_names_of_points(tmp_path, capsys):
    """Folders have names that file systems allow: 255 bytes, and no separators."""
    space = {"name": ep.Static(["\u8cc7" * 150, "../" * 9])}
    store, folder = tmp_path / "store", tmp_path / "events"
    ep.sweep(lambda p: jnp.arange(3.0) * len(p["name"]), space, store=store)
    assert main(["tensorboard", str(store), str(folder), "--all"]) == 0
    names = [path.name for path in (folder / "all").iterdir()]
    assert len(names) == 2 and max(len(x.encode()) for x in names) <= 255


def test_stores_without_curves(tmp_path, stores, capsys):
    for name in ("part", "reduced"):
        assert main(["tensorboard", str(stores[name]), str(tmp_path / "t")]) == 2
        assert "has no curves" in capsys.readouterr().err
    arguments = [str(stores["train"]), str(tmp_path / "t"), "--by", "tset"]
    assert main(["tensorboard", *arguments]) == 2
    assert "Did you mean `test`" in capsys.readouterr().err
    arguments = [str(stores["train"]), str(tmp_path / "t"), "--top", "-1"]
    assert main(["tensorboard", *arguments]) == 2
    assert "`top` is -1" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
