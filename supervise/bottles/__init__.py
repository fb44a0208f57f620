"""What operators do to bottles: their records, their life, their routes and their images."""
