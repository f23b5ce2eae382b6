"""Driven edges, one outside thing each. Siblings never import each other."""
