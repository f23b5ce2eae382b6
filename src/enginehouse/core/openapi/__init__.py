"""The OpenAPI document: every path, what it takes and what it answers, made from declarations."""
