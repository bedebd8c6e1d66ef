"""YAML that somebody wrote by hand."""

from typing import Any

import yaml

#: What PyYAML raises: its own errors for the grammar, Python's for a scalar that is not what its tag or form says
#: (``2020-13-45``, ``!!bool x``) and for nesting without end.
_FAULTS = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def parse_yaml(text: str) -> Any:
    """The value of a document; ValueError says why it is none."""
    try:
        return yaml.safe_load(text)
    except _FAULTS as error:
        raise ValueError(str(error) or type(error).__name__) from error
