"""Small charts, drawn on the server as SVG: coordinates here, marks in the templates."""
