"""Data: text → ids → batches."""
