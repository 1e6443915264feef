"""Diagrams as files, on a page of the docs, and as Mermaid parses them."""

import json
import os
import pathlib
import shutil
import subprocess

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from support.pictures import KEY, linear, stages
from support.strategies import graphs

import eqx_pipe as ep
import eqx_pipe.testing as ept

X = jnp.ones(3)
pipelines = st.one_of(
    st.sampled_from(sorted(stages)).map(stages.get),
    ept.pipelines(X, max_depth=4),
    graphs(X),
)


def test_files(tmp_path):
    diagram = ep.draw(ep.chain(**{'<b>&"script': jnp.sin}), X)
    for suffix in ("md", "mmd"):
        diagram.save(tmp_path / "new" / f"pipe.{suffix}")
    text = (tmp_path / "new" / "pipe.mmd").read_text()
    assert text == str(diagram) == repr(diagram)
    page = (tmp_path / "new" / "pipe.md").read_text()
    assert page == f"```mermaid\n{text}\n```\n" == diagram._repr_markdown_()
    with pytest.raises(FileExistsError, match="or give `overwrite=True`"):
        diagram.save(tmp_path / "new" / "pipe.md")
    diagram.save(str(tmp_path / "new" / "pipe.md"), overwrite=True)
    with pytest.raises(ValueError, match="ends in `.md` or `.mmd`"):
        diagram.save(tmp_path / "pipe.png")


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
