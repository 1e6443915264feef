"""A loader in a notebook."""

from .._html import heading, table
from .._stage import identity
from .._stage.parent import Parent
from .._stage.text import title
from .._tree import tree_text
from .batch import Settings


def loader_page(loader: Settings) -> str:
    """What a loader gives, and how it makes that."""
    size, batch = len(loader.source), loader.batch_size
    whole, rest = divmod(size, batch)
    batches = f"{whole:,} of {batch:,} records"
    if rest:
        last = "left out" if loader.drop_remainder else "as the last"
        batches += f", and {rest:,} {last}"
    rows = [
        ("record", tree_text(loader.source.struct())),
        ("batches", batches),
        ("order", "another in each epoch" if loader.shuffle else "that of the source"),
    ]
    for name, stage in (("pipe", loader.pipe), ("batch_pipe", loader.batch_pipe)):
        if stage is not identity:
            lines = repr(stage) if isinstance(stage, Parent) else title(stage)
            rows.append((name, ", ".join(map(str.strip, lines.splitlines()))))
    if loader.sharding is not None:
        rows.append(("sharding", str(loader.sharding.spec)))
    return heading(f"Loader: {size:,} records an epoch") + table(("", ""), rows)
