"""The copy of an embedder in a run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.base.errors import UsageError
from elman.tasks.embeddings import _keep_files


def test_no_private_file_is_copied_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("secret")
    (source := tmp_path / "run").mkdir()
    (source / "config.json").write_text("{}")
    (source / "card.md").symlink_to(tmp_path / "private")
    with pytest.raises(UsageError, match=r"card\.md is a symbolic link"):
        _keep_files(source, tmp_path / "copy")
    assert not (tmp_path / "copy" / "card.md").exists()
