"""`python -m cmlmcse VERB …` does the same as `cmlmcse VERB …`."""

from cmlmcse.cli import main

if __name__ == "__main__":
    main()
