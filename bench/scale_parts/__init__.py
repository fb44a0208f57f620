"""The measurements that `bench/scale.py` puts together. Each module also runs alone."""
