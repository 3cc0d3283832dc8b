"""Record the attention of a running model, store it in captures, and summarize it."""
