"""Shared helpers without attention: files, settings, tracing, tensors and process settings."""
