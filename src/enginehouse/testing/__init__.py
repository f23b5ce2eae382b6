"""Public fakes for the ports."""
