"""What a window operator keeps, and when it fires."""
