"""The demo without what it needs: refused before anything is started or written."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from raftstore.demo.run import DemoOptions, run_demo
from raftstore.errors import ConfigError


def test_demo_without_java_is_refused_before_a_node_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence says what to install; no cluster came up for nothing, no directory appeared."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("raftstore.spark.java.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"no Java 17 or 21 .* PATH has no java; .*pip install"):
        run_demo(DemoOptions(keep=tmp_path / "keep"), Console(quiet=True))
    assert list(tmp_path.iterdir()) == []
