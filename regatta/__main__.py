"""`python -m regatta`: the command line."""

from regatta.cli import main

if __name__ == "__main__":
    main()
