"""The Django project, and what a bottle is."""
