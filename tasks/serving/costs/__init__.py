"""What serving takes: seconds of steps, learned costs, each row's share of the device."""
