"""Lets the tests of the local model import the helpers beside this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
