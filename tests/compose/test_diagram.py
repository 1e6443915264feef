"""The picture of a diagram: where things lie, files, what a browser makes of it."""

import json
import os
import pathlib
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from support.browser import seen
from support.pictures import KEY, linear, read, stages

import eqx_pipe as ep
import eqx_pipe.testing as ept

X = jnp.ones(3)
SVG = "{http://www.w3.org/2000/svg}"
NEAR = 0.11  # places are written with one decimal


class Rectangle:
    def __init__(self, element):
        self.x, self.y, self.width, self.height = (
            float(element.get(name)) for name in ("x", "y", "width", "height")
        )

    def holds(self, other):
        return (
            self.x <= other.x + NEAR
            and self.y <= other.y + NEAR
            and other.x + other.width <= self.x + self.width + NEAR
            and other.y + other.height <= self.y + self.height + NEAR
        )

    def apart(self, other):
        return (
            self.x + self.width <= other.x + NEAR
            or other.x + other.width <= self.x + NEAR
            or self.y + self.height <= other.y + NEAR
            or other.y + other.height <= self.y + NEAR
        )


def picture(diagram):
    """The SVG, and its frames and boxes (but decisions), all within its borders."""
    root = ElementTree.fromstring(diagram._repr_html_()).find(f"{SVG}svg")
    x, y, width, height = map(float, root.get("viewBox").split())
    found = [Rectangle(e) for e in root.iter(f"{SVG}rect")]
    for r in found:
        assert x < r.x and r.x + r.width < x + width
        assert y < r.y and r.y + r.height < y + height
    return root, found


pipelines = st.one_of(
    st.sampled_from(sorted(stages)).map(stages.get),
    ept.pipelines(X, max_depth=4),
    ept.graphs(X, max_nodes=6),
)


@given(pipelines)
def test_boxes_and_frames_hold_each_other_or_are_apart(pipe):
    diagram = ep.draw(ep.chain(inner=pipe), fold=4)
    names, arrows = read(diagram)
    root, found = picture(diagram)
    decisions = str(diagram).count('{"') - str(diagram).count('{{"')
    assert len(found) == len(names) - decisions
    for i, one in enumerate(found):
        for other in found[i + 1 :]:
            assert one.holds(other) or other.holds(one) or one.apart(other)
    # Each box into which something leads has a head above it.
    heads = [e for e in root.iter(f"{SVG}path") if e.get("stroke") == "none"]
    assert len(heads) >= len({end for _, end in arrows})
    text = "".join(root.itertext())
    assert "input" in text and "output" in text


def test_lines_of_long_graphs_go_round_boxes():
    nodes = {f"n{i}": jnp.sin for i in range(6)}
    edges = {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(6)}
    nodes["sum"] = lambda *xs: sum(xs)
    edges["sum"] = ["input", *list(nodes)[:-1]]
    root, boxes = picture(ep.draw(ep.graph(nodes, edges, "sum"), X))
    assert len(boxes) == 9
    for path in root.iter(f"{SVG}path"):
        if path.get("stroke") == "none" or "C" in path.get("d"):
            continue
        x, rest = path.get("d")[1:].split(" ")
        top, bottom = map(float, rest.split("V"))
        for box in boxes:
            beside = not box.x < float(x) < box.x + box.width
            assert beside or bottom <= box.y + NEAR or top >= box.y + box.height - NEAR


def test_a_long_dense_graph_stays_upright():
    nodes = {f"n{i}": lambda *xs: sum(xs) for i in range(40)}
    edges = {f"n{i}": [f"n{j}" for j in range(max(0, i - 3), i)] for i in range(40)}
    root, boxes = picture(ep.draw(ep.graph(nodes, edges, "n39")))
    widest = max(box.width for box in boxes)
    assert float(root.get("viewBox").split()[2]) < 4 * widest


def test_files(tmp_path):
    name = '<b>&"script'
    diagram = ep.draw(ep.chain(**{name: jnp.sin}), X)
    for suffix in ("svg", "html", "mmd"):
        diagram.save(tmp_path / "new" / f"pipe.{suffix}")
    mermaid = (tmp_path / "new" / "pipe.mmd").read_text()
    assert mermaid == str(diagram) == repr(diagram)
    alone = (tmp_path / "new" / "pipe.svg").read_text()
    assert name in "".join(ElementTree.fromstring(alone).itertext())
    page = (tmp_path / "new" / "pipe.html").read_text()
    assert page.startswith("<!doctype html>") and "<b>" not in page
    for text in (alone, page, diagram._repr_html_()):
        assert "script" not in text.replace("&quot;script", "").replace('"script', "")
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme:dark" in alone and "<style" in page
    assert "<style" not in diagram._repr_html_()  # it would hold for the whole page
    with pytest.raises(FileExistsError, match="or give `overwrite=True`"):
        diagram.save(tmp_path / "new" / "pipe.svg")
    diagram.save(str(tmp_path / "new" / "pipe.svg"), overwrite=True)
    with pytest.raises(ValueError, match="ends in `.svg` or `.html` or `.mmd`"):
        diagram.save(tmp_path / "pipe.png")


def test_a_pipeline_is_shown_as_its_picture():
    pipe = ep.chain(head=linear(KEY), act=jnp.tanh)
    assert pipe._repr_html_() == ep.draw(pipe)._repr_html_()
    grads = eqx.filter_grad(lambda pipe: pipe(X).sum())(pipe)
    assert "head" in grads._repr_html_()
    assert "12 parameters" in eqx.filter_eval_shape(lambda: pipe)._repr_html_()


def diagrams():
    """Of three boxes, of every kind, of sixty in a row, and wide ones."""
    long = [linear(KEY), jnp.tanh] * 29
    wide = {f"kind{i}": ep.chain(jnp.sin, jax.nn.gelu) for i in range(12)}
    yield ep.draw(jnp.sin, X)
    yield from map(ep.draw, stages.values())
    yield ep.draw(ep.chain(*long), X, fold=None)
    yield ep.draw(ep.parallel(wide), X)


def test_the_picture_of_the_page_is_of_its_pipeline():
    body = ep.chain(first=linear_of(3, 4), norm=eqx.nn.LayerNorm(4), act=jnp.tanh)
    branch = ep.cond(jnp.any, linear_of(4, 4))
    pipe = ep.chain(body=body, choice=branch, head=linear_of(4, 2))
    page = pathlib.Path(__file__).parents[2] / "docs" / "composing.md"
    assert f"```mermaid\n{ep.draw(pipe, X)}\n```" in page.read_text()


def linear_of(size_in, size_out):
    return eqx.nn.Linear(size_in, size_out, key=KEY)


@pytest.mark.slow
def test_text_is_within_its_box_in_a_browser(tmp_path):
    pages = []
    for i, diagram in enumerate(diagrams()):
        diagram.save(tmp_path / f"{i}.html")
        pages.append((tmp_path / f"{i}.html").read_text())
    for page in seen(pages, tmp_path, 390):
        assert page == {"wide": 0, "outside": []}


CHECK = """
import { JSDOM } from "jsdom";
import fs from "fs";
globalThis.window = new JSDOM("").window;
globalThis.document = window.document;
const mermaid = (await import("mermaid")).default;
for (const text of JSON.parse(fs.readFileSync(0, "utf8")))
  await mermaid.parse(text);
console.log("parsed");
"""


@pytest.mark.slow
def test_mermaid_reads_it(tmp_path):
    folder = os.environ.get("MERMAID_FOLDER", "")
    if not folder or shutil.which("node") is None:
        pytest.skip(
            "no Mermaid: run `npm install mermaid jsdom` in a folder, and name that "
            "folder in MERMAID_FOLDER"
        )
    texts: list[str] = []

    @given(pipelines)
    def collect(pipe):
        texts.append(str(ep.draw(ep.chain(**{'a"b<c>|`#;&\n[x]{y}': pipe}), fold=4)))

    collect()
    texts += map(str, diagrams())
    script = os.path.join(folder, "check_eqx_pipe.mjs")
    with open(script, "w") as file:
        file.write(CHECK)
    run = subprocess.run(
        ["node", script], input=json.dumps(texts), capture_output=True, text=True
    )
    assert run.stdout == "parsed\n", run.stderr
