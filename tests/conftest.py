"""Settings of all tests: examples without a deadline, and ``--budget-s`` for a bounded sample of the long ones.

Tests look into the Python sources: they patch methods and copy states, which the compiled core does not allow. That it
does the same is what ``test_compiled`` is for; ``ASCEND_KV_SIM_PURE=0`` runs the other tests on it, too.
"""

import gc
import hashlib
import os
import time

os.environ.setdefault("ASCEND_KV_SIM_PURE", "1")  # before the package is imported, here and in subprocesses

import pytest
from answer_folders import Folders
from hypothesis import settings

# Machines differ in speed; what a test costs is bounded by its number of examples.
settings.register_profile("repository", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("repository")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Results folders of every command; read only."""
    return Folders(tmp_path_factory.mktemp("folders"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget-s", type=float, default=None, help="start no further test after this many seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--budget-s") is not None:
        # A fixed shuffle: a sample should not be the first file alone.
        items.sort(key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())


def pytest_collection_finish() -> None:
    # A million objects that stay to the end: looking for garbage among them again and again is a fifth of all time.
    gc.freeze()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_STARTED] = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    budget_s = item.config.getoption("--budget-s")
    if budget_s is not None and time.monotonic() - item.config.stash[_STARTED] > budget_s:
        pytest.skip(f"the budget of {budget_s:g} s is used up")


_STARTED = pytest.StashKey[float]()
