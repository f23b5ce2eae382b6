"""One file for each way in which models write calls."""
