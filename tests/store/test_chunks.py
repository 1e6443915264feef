"""The chunks into which a grid is cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eqx_pipe._sweep.store import choose_chunks


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 100),
    st.integers(1, 1000),
    st.integers(1, 5),
)
def test_chunks_cover_the_grid_each_a_stretch_and_a_box(lengths, across, most, parts):
    chunks = choose_chunks(lengths, across, most, parts)
    size = int(np.prod(lengths))
    seen = np.zeros(size, int)
    grid = np.arange(size).reshape(lengths)
    for number in range(len(chunks)):
        first, last = chunks.span(number)
        assert 0 < last - first <= chunks.points
        place = chunks.place(number)
        pairs = zip(place, chunks.shape, strict=True)
        box = tuple(slice(at * n, (at + 1) * n) for at, n in pairs)
        assert np.array_equal(grid[box].ravel(), np.arange(first, last))
        assert chunks.at(place) == number
        assert chunks.holding(np.array([first, last - 1])).tolist() == [number, number]
        seen[first:last] += 1
    assert np.all(seen == 1)
    assert len(chunks) >= min(parts, size)


def test_chunks_are_few_and_full():
    for lengths in [
        (1000, 1000),
        (100_000, 3),
        (10**6,),
        (7, 100_003),
        (2, 2, 9, 5000),
    ]:
        chunks = choose_chunks(lengths, 256, 10**7)
        assert 128 <= len(chunks) <= 512
        rounds = -(-chunks.points // 256) * len(chunks)
        assert rounds * 256 <= 1.1 * np.prod(lengths)
    # What is computed at once decides, and what fits in memory.
    assert len(choose_chunks((1000,), 400, 10**7)) <= 3
    assert choose_chunks((10**6, 10), 100, 200).points <= 400
    # Of those that are as good, the nearest to a 256th.
    assert abs(choose_chunks((10**6,), 1, 10**7).points - 3907) < 40
    assert len(choose_chunks((4,), 4, 100)) == 1  # to fill four lanes
    assert (
        len(choose_chunks((4,), 4, 100, parts=2)) == 2
    )  # but each process gets a share
    assert (
        len(choose_chunks((1, 2), 2, 1, parts=2)) == 2
    )  # also where a whole row would do
