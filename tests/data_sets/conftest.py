import jaxtyping
import pytest


@pytest.fixture
def users_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations are checked in tests only: without this, the checker would speak before our own sentences."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
