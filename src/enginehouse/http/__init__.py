"""The driving edge: routes, server-sent events, error bodies."""
