"""Models of `transformers`: their layouts by family, and how they are made."""
