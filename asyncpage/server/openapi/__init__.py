"""The API's own description, OpenAPI 3.1, kept by hand: a file a group of routes, and the page that shows it."""
