"""What each kind of page says; ``showing.page`` has what they share."""
