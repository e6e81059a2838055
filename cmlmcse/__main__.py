"""`python -m cmlmcse VERB …` is `cmlmcse VERB …`."""

from cmlmcse.cli import main

if __name__ == "__main__":
    main()
