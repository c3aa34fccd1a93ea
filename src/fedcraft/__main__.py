"""``python -m fedcraft``: the command line."""

from fedcraft.cli import main

if __name__ == "__main__":
    main()
