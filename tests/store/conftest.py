import pytest
from support.bucket import Bucket, Folder


@pytest.fixture(params=["folder", "bucket"])
def files(request, tmp_path):
    """Return an empty folder, or an empty bucket in memory."""
    if request.param == "bucket":
        return Bucket()
    (tmp_path / "r").mkdir()
    return Folder(tmp_path / "r")
