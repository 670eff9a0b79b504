"""The reference of the API as a page, made from the OpenAPI document."""
