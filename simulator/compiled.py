"""Takes modules from the compiled core, if there is one for this Python and these sources.

``_core`` holds extension modules made from the very ``.py`` files of this package (see ``hatch_build.py``) and a list
of their check sums. All of them are used, or none: when a source has changed since, or ``ASCEND_KV_SIM_PURE=1`` is
set, everything runs as Python, with the same results.
"""

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from zlib import crc32

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CORE = os.path.join(_ROOT, "simulator", "_core")


class CoreFinder:
    """A finder, as ``sys.meta_path`` has them, of the compiled modules under their usual names."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The compiled module of that name, if there is one."""
        del path, target
        file = self._files.get(fullname)
        return None if file is None else ModuleSpec(fullname, ExtensionFileLoader(fullname, file), origin=file)


def use_core() -> str:
    """Make imports find the compiled core; says what runs from now on: ``compiled``, or ``python`` and why."""
    if os.environ.get("ASCEND_KV_SIM_PURE") == "1":
        return "python (asked for)"
    try:
        with open(os.path.join(_CORE, "sources.txt"), encoding="ascii") as listing:
            sources = [line.split() for line in listing]
    except OSError:
        return "python (no compiled core)"
    if not all(_check_sum(source) == check_sum for check_sum, source in sources):
        return "python (sources have changed since the core was compiled)"
    suffix = EXTENSION_SUFFIXES[0]
    files = {name.removesuffix(suffix): os.path.join(_CORE, name) for name in os.listdir(_CORE)}
    if not all(source.removesuffix(".py").replace("/", ".") in files for _, source in sources):
        return "python (the core was compiled for another Python)"
    sys.meta_path.insert(0, CoreFinder(files))
    return "compiled"


def _check_sum(source: str) -> str | None:
    try:
        with open(os.path.join(_ROOT, source), "rb") as file:
            return f"{crc32(file.read()):08x}"
    except OSError:
        return None
