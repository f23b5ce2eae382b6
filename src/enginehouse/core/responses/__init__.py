"""`/v1/responses`, without memory: a body to the one internal request, and an answer to items and events."""
