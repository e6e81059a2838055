"""Studies: arms × paired seeds, run and reported."""
