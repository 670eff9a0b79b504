"""What an engine has made, on its way to the database and to streams."""
