"""``python -m hardnet``, and ``hardnet``: the command line."""

from hardnet.cli import main

if __name__ == "__main__":
    main()
