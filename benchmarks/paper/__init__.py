"""Every published policy in simulation beside the figures that its paper prints."""
