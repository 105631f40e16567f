"""The program's version, and what tells two programs of one version apart."""


def version() -> str:
    """The installed distribution's version; ``0+source`` when run from a folder that was never installed."""
    from importlib import metadata

    try:
        return metadata.version("ascend-kv-sim")
    except metadata.PackageNotFoundError:
        return "0+source"


def code_sha256() -> str:
    """SHA-256 over the names and bytes of the package's files: code, templates and presets.

    Traces are left out: a manifest has a hash of its own for each file that was read. Line ends count as one kind, so
    that a checkout on another system is the same program.
    """
    import hashlib
    from pathlib import Path

    root = Path(__file__).parent
    found = hashlib.sha256()
    names = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.suffix in _CODE}
    for name in sorted(name for name in names if not name.startswith(_NOT_CODE)):
        content = names[name].read_bytes().replace(b"\r\n", b"\n")
        found.update(f"{name}\n{len(content)}\n".encode() + content)
    return found.hexdigest()


_CODE = frozenset({".py", ".j2", ".css", ".js", ".json", ".yaml"})
#: shipped scenarios are in the manifest as they were run, the compiled core is made from the sources; both are below
#: the package in an installed one only
_NOT_CODE = ("_scenarios/", "_core/")
