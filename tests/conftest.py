"""Lets every test import the helpers beside this file (importlib mode leaves sys.path alone)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
