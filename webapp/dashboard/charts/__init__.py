"""The coordinates of small SVG charts; the templates draw the marks."""
