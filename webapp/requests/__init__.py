"""What all calls that submit share: from the options of a body to stored requests and their answers."""
