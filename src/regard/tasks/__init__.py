"""Tasks: each combines data, a model, a loss and a metric behind the interface that the training loop expects."""
