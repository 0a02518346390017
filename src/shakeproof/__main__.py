"""`python -m shakeproof`."""

from shakeproof.cli import main

if __name__ == "__main__":
    main()
