"""What every part uses: settings from the environment, the home directory, processes, the disk. No Django."""
