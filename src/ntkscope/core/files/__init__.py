"""Files: written atomically, read as data that nobody vouched for, locked while they change."""
