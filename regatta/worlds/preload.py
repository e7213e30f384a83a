"""Imported once by the process that ranks are forked from, so that they need not."""

import regatta.runs  # noqa: F401
