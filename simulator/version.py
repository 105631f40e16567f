"""The program's version."""


def version() -> str:
    """The installed distribution's version; ``0+source`` when run from a folder that was never installed."""
    from importlib import metadata

    try:
        return metadata.version("ascend-kv-sim")
    except metadata.PackageNotFoundError:
        return "0+source"
