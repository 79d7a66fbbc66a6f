"""Values that workers share besides gradients: combined variables, a barrier, gathered texts."""
