"""Fixtures every test may use: an own home, an own environment, tiny models, and strict skips.

``BC250STUDIO_CI_STRICT=1`` (set by .ci/run) turns a skipped server or Vulkan test into a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

# A busy machine must not turn into a failed property.
hypothesis_settings.register_profile("studio", deadline=None, suppress_health_check=list(HealthCheck))
hypothesis_settings.load_profile("studio")

for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "TEXTUAL_THEME", "TEXTUAL_COLOR_SYSTEM", "SSH_CONNECTION"):
    os.environ.pop(name, None)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

STRICT = os.environ.get("BC250STUDIO_CI_STRICT") == "1"
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own BC250STUDIO_HOME."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("BC250STUDIO_HOME", str(folder))
    return folder


@pytest.fixture
def shared_data() -> Path:
    """The public datasets beside the checkout; tests must not need them."""
    if not SHARED_DATA.is_dir():
        pytest.skip("no ../shared/data here")
    return SHARED_DATA


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    outcome = yield
    report = outcome.get_result()
    strict = STRICT and any(item.get_closest_marker(m) for m in ("server", "vulkan", "clang", "e2e"))
    if strict and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where server, Vulkan and clang tests must run: {reason}"
