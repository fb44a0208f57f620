"""What `bench/scale.py` measures, part by part: each part returns rows."""
