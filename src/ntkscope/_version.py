"""The version of this package, found without importing any room."""

from __future__ import annotations

from importlib import metadata


def package_version() -> str:
    """This package's version; "source" where it runs from a source tree that is not installed."""
    try:
        return metadata.version("ntkscope")
    except metadata.PackageNotFoundError:
        return "source"
