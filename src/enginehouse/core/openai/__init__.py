"""The OpenAI edge as pure functions: request bodies in, response bytes out, text in between."""
