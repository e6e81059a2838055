"""From text to batches: readers, augmentations, masking, collation."""
