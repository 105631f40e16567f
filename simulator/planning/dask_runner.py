"""Tasks on a Dask cluster; needs the extra ``dask``."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from simulator.errors import InputError, Problem
from simulator.planning.tasks import Found, Runner, Task

#: how often a task is tried again when its worker dies under it
_RETRIES = 3
_CONNECT_S = 15


@contextmanager
def dask_cluster(address: str, jobs: int) -> Iterator[Runner]:
    """A runner on the cluster at ``address`` (``tcp://host:port``), or on ``jobs`` processes here for ``local``.

    Workers need this package and the files that the scenario names. A task whose worker dies is run by another one.
    Raises ``InputError`` when Dask is missing or nobody answers.
    """
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise _error(address, "needs the extra: pip install 'ascend-kv-sim[dask]'") from None
    with ExitStack() as stack:
        where = address
        if address == "local":
            where = stack.enter_context(
                distributed.LocalCluster(n_workers=jobs, threads_per_worker=1, processes=True, dashboard_address=None)
            )
        try:
            client = stack.enter_context(distributed.Client(where, timeout=_CONNECT_S))
        except (OSError, ValueError, TimeoutError) as error:
            raise _error(address, f"no scheduler answers: {error}") from None

        def run(function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]:
            futures = {
                client.submit(function, task, pure=False, retries=_RETRIES): index for index, task in enumerate(tasks)
            }
            for future in distributed.as_completed(list(futures)):
                yield futures[future], future.result()

        yield run


def _error(address: str, message: str) -> InputError:
    return InputError([Problem(option=f"--dask {address}", message=message)])
