"""Imported once by the process that ranks are forked from, so that they need not."""

import atexit
import os
import shutil

import regatta.runs  # noqa: F401
from regatta.worlds import FOLDER_VARIABLE

# This process ends when the one that started it and all ranks have ended, however that was. Then
# nobody needs the folder any more that has its socket and the ranks' meeting place.
if FOLDER_VARIABLE in os.environ:
    atexit.register(shutil.rmtree, os.environ[FOLDER_VARIABLE], ignore_errors=True)
