"""What the backends' tests share."""
