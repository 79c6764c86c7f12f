"""``python -m capri`` is the command ``capri``."""

from capri.cli import main

if __name__ == "__main__":
    main()
