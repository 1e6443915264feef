"""Patterns over paths: `trainable`, and whatever else is chosen by path."""

import pytest

from eqx_pipe._stage.pattern import check_matched, chooser, matches

CASES = [
    ("head", "head", True),
    ("head", "head.weight", False),
    ("head*", "head2", True),
    ("head*", "head.weight", False),
    ("*", "a.b", False),
    ("blocks.*.attn", "blocks.3.attn", True),
    ("blocks.*.attn", "blocks.3.a.attn", False),
    ("blocks.[01]", "blocks.1", True),
    ("blocks.[01]", "blocks.2", False),
    ("blocks.?", "blocks.12", False),
    ("**.bias", "bias", True),
    ("**.bias", "a.0.bias", True),
    ("a.**.bias", "a.bias", True),
    ("a.**.bias", "a.b.c.bias", True),
    ("a.**.bias", "b.bias", False),
    ("a.**", "a.b.c", True),
    ("a.**", "ab", False),
    ("Head", "head", False),
]


@pytest.mark.parametrize("pattern, path, same", CASES)
def test_a_pattern_is_read_part_by_part(pattern, path, same):
    assert matches(pattern, path) is same
    if same:
        assert matches(pattern, f"{path}.x.y", below=True)


def test_the_last_pattern_that_matches_decides():
    chosen = chooser(["a", "!a.b", "a.b.c"], below=True)
    assert [p for p in ("a", "a.b", "a.b.c", "a.d", "e") if chosen(p)] == [
        "a",
        "a.b.c",
        "a.d",
    ]
    rest = chooser(["!a"], below=True)
    assert rest("b") and not rest("a.b") and not chooser([])("a")


def test_a_pattern_that_matches_nothing_names_the_nearest():
    known = ["encoder.norm", *(f"blocks.{i}" for i in range(40))]
    with pytest.raises(ValueError, match=r"`encodr.norm` .*mean `encoder\.norm`\?"):
        check_matched("trainable", ["blocks.*", "encodr.norm"], known)
    with pytest.raises(ValueError, match="and 33 more"):
        check_matched("trainable", ["zzz"], known)
    check_matched("trainable", ["!blocks.3"], known)
