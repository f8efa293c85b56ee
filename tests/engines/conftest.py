"""Fixtures that several files of tests share."""

from native_fixture import native_project

__all__ = ["native_project"]
