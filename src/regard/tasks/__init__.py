"""Tasks: data, model, loss and metric put together, in the shape that the training loop takes."""
