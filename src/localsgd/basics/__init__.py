"""What every floor may use: seeds, units, files read with care, JSON that every reader takes."""
