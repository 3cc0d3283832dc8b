"""What every package builds on: files, settings, tracing, tensors, the process. No attention."""
