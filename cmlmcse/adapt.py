"""`python -m cmlmcse.adapt MODEL TEXT …`, the same command as `cmlmcse adapt MODEL TEXT …`.

Nothing imports this module: `from cmlmcse import adapt` gives the function of the same name.
"""

from cmlmcse.adaptation.command import main

if __name__ == "__main__":
    main()
