"""From text to training batches: readers, tokenisation, augmentations, masking, collation."""
