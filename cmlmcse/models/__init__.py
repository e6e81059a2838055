"""Load encoders from a folder or a Hub name."""
