"""The kinds of proposals, one file for each, registered in `supervise.apps`.

`route_table`, `route_edit` and `dockerfile_review` are parts of them. May import `proposals`, which knows the
base class alone, and `bottles`, which knows no kind.
"""
