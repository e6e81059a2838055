"""`python -m cmlmcse.encode MODEL IN …` does the same as `cmlmcse encode MODEL IN …`."""

from .command import main

if __name__ == "__main__":
    main()
