"""What is in a packed dataset: figures, one sample, a contact sheet, how well an epoch mixes."""
