"""Errors of Shortlist.

::

    ShortlistError              message = what, key, value, expectation, next step
    ├── ConfigError             a configuration value is missing or out of range
    ├── InputError              a row, file or request field is wrong
    ├── DatabaseError           PostgreSQL refused or failed
    │   ├── DatabaseUnavailable PostgreSQL cannot be reached now; trying again may help
    │   └── SchemaError         tables or views are missing, changed or of another version
    ├── SpecMismatch            a model was trained with another feature spec
    ├── TrainingError           a training process failed
    └── ReleaseError            a release is damaged, incomplete or unknown
"""

from __future__ import annotations


class ShortlistError(Exception):
    """Base of all errors that a user of Shortlist can act on."""


class ConfigError(ShortlistError):
    """A configuration value is missing or out of range."""


class InputError(ShortlistError):
    """A row, file or request field is wrong."""


class DatabaseError(ShortlistError):
    """PostgreSQL refused or failed."""


class DatabaseUnavailable(DatabaseError):
    """PostgreSQL cannot be reached now."""


class SchemaError(DatabaseError):
    """Tables or views are missing, changed or of another version."""


class SpecMismatch(ShortlistError):
    """A model was trained with another feature spec."""


class TrainingError(ShortlistError):
    """A training process failed."""


class ReleaseError(ShortlistError):
    """A release is damaged, incomplete or unknown."""
