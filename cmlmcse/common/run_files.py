"""The names of what training and adapt write to their output folders, for all that read them."""

EXPORT = "export"  # the encoder, for users
RUN, RESULTS = "run.json", "results.json"  # what was trained and how, and what was measured
ARMS, REQUEST = "arms", "request.json"  # of adapt: the folder of its runs, and what it was asked for
