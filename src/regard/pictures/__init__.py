"""Pictures of maps, arrays and (name, map) pairs, with matplotlib or in the terminal."""
