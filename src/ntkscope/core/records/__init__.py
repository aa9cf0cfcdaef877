"""Records: folders that say what ran, how far it got and what it found."""
