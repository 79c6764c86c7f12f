"""``python -m capri_lab`` is the command ``capri-lab``."""

from capri_lab.cli import main

if __name__ == "__main__":
    main()
