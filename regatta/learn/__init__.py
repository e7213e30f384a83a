"""What a replica does between exchanges."""
