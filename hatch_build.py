"""Compiles the core (engine, allocators, step cost) with mypyc when the package is installed or built.

The sources stay what runs without a C compiler, with the same results and less speed. ``ASCEND_KV_SIM_PURE=1`` asks for
that, so does a build that fails; both make a wheel for every platform. Compiled modules go to ``simulator/_core``,
beside a list of the sources they were made from; ``simulator/compiled.py`` loads them.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CORE = "simulator/_core"
#: modules and packages whose time matters
SOURCES = (
    "simulator/engine.py",
    "simulator/scheduler.py",
    "simulator/cost.py",
    "simulator/units.py",
    "simulator/allocators/*.py",
    "simulator/serving/*.py",
    "simulator/kernels/batch_attention.py",
    "simulator/kernels/batch_lengths.py",
    "simulator/kernels/burst_walk.py",
    "simulator/kernels/core_race.py",
    "simulator/kernels/core_units.py",
    "simulator/kernels/decode_attention.py",
    "simulator/kernels/deep_walk.py",
    "simulator/kernels/kernel_sums.py",
    "simulator/kernels/kernel_walk.py",
    "simulator/kernels/roofline.py",
    "simulator/kernels/step_load.py",
    "simulator/planning/cache_policies.py",
)
#: what mypyc cannot compile (packages, exceptions), and what takes little time
LEFT_OUT = (
    *("__init__", "violations"),
    *("cow_check", "compaction_worth", "deadlock", "live_tokens"),
    *("observation", "oom_state", "pool", "pool_map", "replay"),
)
#: name of the shared library that all compiled modules are in
GROUP = "ascend_kv_sim_core"
#: types are checked elsewhere, with every library there; here some are missing
MYPY_OPTIONS = (
    "--config-file=pyproject.toml",
    "--ignore-missing-imports",
    "--no-warn-unused-ignores",
    "--no-warn-return-any",
    "--allow-any-generics",
    "--allow-subclassing-any",
    "--allow-untyped-decorators",
    "--allow-untyped-calls",
)


class CoreBuildHook(BuildHookInterface[Any]):
    """Puts the compiled core into wheels and editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless it is not wanted or cannot be done."""
        root = Path(self.root)
        pure = os.environ.get("ASCEND_KV_SIM_PURE") == "1"
        if self.target_name != "wheel" or (pure and version != "editable"):
            return  # what an earlier build left in the sources gets into no wheel unless it is named below
        shutil.rmtree(root / CORE, ignore_errors=True)
        if pure:
            return
        built = subprocess.run([sys.executable, __file__, str(root)], capture_output=True, text=True, check=False)
        if built.returncode != 0:
            shutil.rmtree(root / CORE, ignore_errors=True)
            self.app.display_warning(f"The core was not compiled, it will run as Python:\n{built.stdout}{built.stderr}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(f"/{CORE}/*")


def compile_core(root: Path) -> None:
    """Make ``simulator/_core`` below ``root`` from its sources; takes a minute of processor time."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(root)
    sources = sorted(str(path) for pattern in SOURCES for path in Path().glob(pattern) if path.stem not in LEFT_OUT)
    with tempfile.TemporaryDirectory() as work:
        listing = _check_sums(sources)  # of what is compiled, whatever happens to it meanwhile
        extensions = mypycify(
            [*MYPY_OPTIONS, f"--cache-dir={work}/mypy", *sources],
            opt_level="1",  # 2 compiles half as long again and runs no faster
            debug_level="0",
            group_name=GROUP,
            target_dir=f"{work}/c",
            multi_file=True,
        )
        distribution = Distribution({"name": GROUP, "ext_modules": extensions})
        command = _parallel_build(distribution)
        command.build_lib, command.build_temp = f"{work}/lib", f"{work}/temp"
        command.ensure_finalized()
        command.run()
        _collect(Path(work) / "lib", listing)


def _parallel_build(distribution: Any) -> Any:
    """``build_ext`` that compiles the C files of an extension side by side."""
    from setuptools.command.build_ext import build_ext

    class ParallelBuild(build_ext):
        def build_extensions(self) -> None:
            compile_files = self.compiler.compile

            def compile_side_by_side(files: list[str], **options: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    objects = pool.map(lambda file: compile_files([file], **options), files)
                    return list(chain.from_iterable(objects))

            self.compiler.compile = compile_side_by_side
            super().build_extensions()

    return ParallelBuild(distribution)


def _check_sums(sources: list[str]) -> str:
    from zlib import crc32

    return "".join(f"{crc32(Path(source).read_bytes()):08x} {source}\n" for source in sources)


def _collect(built: Path, listing: str) -> None:
    """Compiled modules side by side under their full names, and what they were made from."""
    core = Path(CORE)
    shutil.rmtree(core, ignore_errors=True)
    core.mkdir()
    for library in sorted(built.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}")):
        shutil.copyfile(library, core / ".".join(library.relative_to(built).parts))
    (core / "sources.txt").write_text(listing, encoding="ascii")


if __name__ == "__main__":
    compile_core(Path(sys.argv[1]))
