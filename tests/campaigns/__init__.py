"""What the campaign draws and how it judges: rounds by their seeds, families of sets, independent oracles."""
