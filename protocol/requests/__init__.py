"""What all calls that submit have in common: prompts, options, tools, submissions."""
