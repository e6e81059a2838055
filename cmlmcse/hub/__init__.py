"""Export a trained model to a folder that others can load, write its model card, and publish it."""
