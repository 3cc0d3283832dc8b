"""Recipes: data settings, their preparation, and the training of one kind of model."""
