"""The pages and the fake trainer of the sweep tests serve here too."""

from tests.sweep.conftest import importable, write  # noqa: F401 - fixtures
