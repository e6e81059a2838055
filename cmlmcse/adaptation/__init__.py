"""Adapt an encoder to unlabelled text: try settings, choose by a label-free score, and report whether it is better."""
