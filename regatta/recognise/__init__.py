"""A trained recogniser in use: from recordings to texts."""
