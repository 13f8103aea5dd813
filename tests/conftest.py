"""Fixtures live in plugins, one for each subject."""

pytest_plugins = ["fixtures_database", "fixtures_serving"]
