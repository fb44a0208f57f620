"""A proposal from the ask to the answer: submit, review, decide, apply, wake."""
