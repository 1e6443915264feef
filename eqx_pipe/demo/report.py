"""What the demo prints and leaves behind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
from xarray import Dataset

import eqx_pipe as ep

from .training import Setting

RESULT, REPORT, PICTURE = "sweep.nc", "sweep.html", "grid.png"
MODEL, DIAGRAM = "model.eqx", "pipeline.md"


def outline(model: ep.Stage) -> str:
    """The pipeline as indented text, one line for each stage."""
    return "\n".join(_lines(ep.describe(model), 1))


def _lines(node: Mapping[str, Any], depth: int) -> list[str]:
    name = node["path"].rpartition(".")[2]
    kind = node["settings"]["name"] if node["kind"] == "function" else node["kind"]
    count = node["parameters"]["count"]
    size = f"{count:,} parameters" if count else ""
    label = "  " * depth + (f"{name}: {kind}" if name else kind)
    # What is inside an Equinox layer is known by its name.
    ours = node["kind"][0].islower()
    children = node["children"] if ours else []
    inner = [line for child in children for line in _lines(child, depth + 1)]
    return [f"{label:<32}{size}".rstrip(), *inner]


def setting_text(setting: Setting) -> str:
    """A setting in words."""
    return (
        f"learning rate {float(setting.learning_rate):.3g}, "
        f"weight decay {float(setting.weight_decay):.3g}"
    )


def save_diagram(path: Path, model: ep.Stage) -> None:
    """The pipeline as a Mermaid diagram inside a Markdown file."""
    path.write_text(f"```mermaid\n{ep.draw(model)}\n```\n")


def save_picture(path: Path, table: Dataset, best: Setting) -> None:
    """A heat map of validation accuracy over learning rate and weight decay."""
    # Without pyplot, which would look for a window system.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mean = 100 * table["validation_accuracy"].mean("seed")
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    mean.plot.pcolormesh(
        x="learning_rate", y="weight_decay", xscale="log", yscale="log", ax=axes
    )
    axes.set(xlabel="learning rate", ylabel="weight decay")
    axes.set_title(f"Validation accuracy in %, mean over {table.sizes['seed']} seeds")
    star = {"marker": "*", "s": 300, "color": "white", "edgecolor": "black"}
    axes.scatter(best.learning_rate, best.weight_decay, **star)
    FigureCanvasAgg(figure).print_png(path)


def save(out: Path, result: ep.SweepResult, model: ep.Stage, best: Setting) -> None:
    """Everything that the demo leaves in its folder."""
    import matplotlib

    matplotlib.use("agg")  # no window
    table = result.to_xarray()
    table.to_netcdf(out / RESULT)
    result.report(out / REPORT, overwrite=True)
    save_picture(out / PICTURE, table, best)
    eqx.tree_serialise_leaves(out / MODEL, model)
    save_diagram(out / DIAGRAM, model)


def how_to_open(out: Path) -> str:
    """One line of Python, or one sentence, for each file."""
    return f"""\
In {out}:
  {RESULT}: every training, labelled. Open it by
    import xarray; xarray.open_dataset({str(out / RESULT)!r})
  {REPORT}: the sweep on one page, with pictures. Open it with a browser.
  {PICTURE}: validation accuracy over the grid. Open it with any image viewer.
  {MODEL}: the trained pipeline. Open it by
    import equinox, jax; from eqx_pipe.demo import make_model
    empty = make_model(key=jax.random.key(0))
    equinox.tree_deserialise_leaves({str(out / MODEL)!r}, empty)
  {DIAGRAM}: the pipeline as a diagram. GitHub and most Markdown viewers show it."""
