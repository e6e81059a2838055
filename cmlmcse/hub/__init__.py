"""From a trained model to a folder that others load: export, card, publishing."""
