"""Recipes: each has the data settings, the data preparation and the training of one kind of model."""
