"""Used by every other folder: environment, home, files, locks, processes, disk, plan types. No Django."""
