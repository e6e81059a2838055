"""The tool around the model: train, evaluate, encode, search and publish sentence encoders."""
