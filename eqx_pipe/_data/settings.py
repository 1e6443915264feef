"""What a loader is: its fields, for all that works on one."""

import equinox as eqx
from jax.sharding import NamedSharding

from .._types import StageLike
from .source import Source


class Pipes(eqx.Module):
    """What makes a batch of records, whatever source they come from."""

    pipe: StageLike
    batch_pipe: StageLike
    sharding: NamedSharding | None = eqx.field(static=True)


class Settings(eqx.Module):
    """The fields of a `Loader`, which says what they mean."""

    source: Source
    pipe: StageLike
    batch_pipe: StageLike
    batch_size: int = eqx.field(static=True)
    shuffle: bool = eqx.field(static=True)
    drop_remainder: bool = eqx.field(static=True)
    sharding: NamedSharding | None = eqx.field(static=True)
    schema: int = eqx.field(static=True, repr=False)

    @property
    def pipes(self) -> Pipes:
        """A program that is given the records needs these only."""
        return Pipes(self.pipe, self.batch_pipe, self.sharding)
