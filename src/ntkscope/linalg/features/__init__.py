"""Feature matrices: rows that pass by in blocks, their principal components, leading directions and agreement."""
