"""Values that workers share outside of gradients: combined variables, a barrier, gathered texts."""
