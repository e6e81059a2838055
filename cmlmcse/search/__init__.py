"""Search by vectors and words: the corpus, the nearest rows, and the command."""
