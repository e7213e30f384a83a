"""Where ranks live: real processes or a virtual clock."""
